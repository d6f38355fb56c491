"""The work of each kind of step (:mod:`workers.handlers.registry`); all stages of a candidate share one module."""
