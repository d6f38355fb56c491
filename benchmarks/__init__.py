"""Scripts that print every number which the README and the docs state: ``python -m benchmarks.NAME``."""
