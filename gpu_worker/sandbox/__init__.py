"""Sandboxes for compilers, references, judges and runners: what runs code of users, or reads what that code says.

Start with :mod:`gpu_worker.sandbox.sandbox`.
"""
