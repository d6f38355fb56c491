"""The schema, a module for each room of :mod:`cupilot.storage`: enums, checks, partial unique indexes, foreign keys.

All modules are imported here, so that the metadata is always whole. Alembic owns the DDL.
"""

from cupilot.storage.db.tables import batches, experiments, jobs, models, people, pool, queue, webhooks  # noqa: F401
