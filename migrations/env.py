"""Alembic's environment: runs on the connection that :mod:`migrations` hands over, in its transaction."""

from __future__ import annotations

from alembic import context

from cupilot.storage.db import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.people.Team.metadata,
    compare_type=True,
    compare_server_default=True,
)
context.run_migrations()
