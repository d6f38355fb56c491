"""What differs between ``cpu`` and ``cuda``; :mod:`gpu_worker.targets.base` says which parts a target has."""
