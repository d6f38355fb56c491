"""The domain of cuPilot and what every part shares.

Nothing here imports torch, Celery, FastAPI or a database driver at module level; only
:mod:`cupilot.storage` knows SQLAlchemy and Chroma.
"""

__version__ = "0.1.0"
