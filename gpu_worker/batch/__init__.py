"""Judges the steps of a batch on this machine, without a network: ``python -m gpu_worker batch run FILE``."""
