"""The processes that move jobs on: the scheduler, and the Celery workers that do the steps.

Postgres is the truth; a Celery message is only a hint that a step may be ready.
"""
