"""Builds, judges, times and profiles kernels; alone on its machine, with only torch, numpy, pydantic and a compiler.

The package itself imports nothing: the runner loads it in an interpreter without site-packages.
"""
