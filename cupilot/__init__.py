"""The package of cuPilot: domain, client, command line, and what every part of the service shares.

Nothing here imports torch, Celery, FastAPI or a database driver at module level; only
:mod:`cupilot.storage` knows SQLAlchemy and Chroma.
"""

__version__ = "0.1.0"
