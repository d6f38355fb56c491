"""Batches on the service's side: a worker that takes long.

The scheduler exports steps and settles their results here, with the handlers and the flow that every worker uses; only
the judge is replaced, by one that asks and one that answers.
"""
