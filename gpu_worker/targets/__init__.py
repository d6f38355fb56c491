"""The targets ``cpu`` and ``cuda``; :mod:`gpu_worker.targets.base` defines the parts that a target has."""
