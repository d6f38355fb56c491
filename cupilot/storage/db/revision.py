"""Read the revision of the database's schema. Knows no migration; those are in ``migrations``."""

from __future__ import annotations

from sqlalchemy import inspect, text
from sqlalchemy.orm import Session


def schema_revision(session: Session) -> str | None:
    """Return the Alembic revision of the connected database; None for one that was never migrated."""
    if not inspect(session.connection()).has_table("alembic_version"):
        return None
    return session.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
