"""What each kind of step does, by :mod:`workers.handlers.registry`; all stages of a candidate share one handler."""
