"""A whole job in one process, without database, queue and network: the same stages, method, seeds and judge.

Runs on a bare GPU box, so it imports no library of the service.
"""
