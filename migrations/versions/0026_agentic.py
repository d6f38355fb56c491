"""Candidates that a model works on with tools: their operator and their steps."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | Sequence[str] | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NEW = {"step_kind": ("act", "steps", "kind"), "operator": ("agentic", "candidates", "operator")}
"""By type: the value, and the table and column that hold it."""


def upgrade() -> None:
    for name, (value, _, _) in NEW.items():
        op.execute(f"ALTER TYPE {name} ADD VALUE IF NOT EXISTS '{value}'")


def downgrade() -> None:
    """Jobs that the former schema has no words for go with it; the types are made anew, without the values."""
    for name, (value, table, column) in NEW.items():
        op.execute(f"DELETE FROM jobs WHERE id IN (SELECT job_id FROM {table} WHERE {column}::text = '{value}')")
        query = sa.text(f"SELECT enumlabel FROM pg_enum WHERE enumtypid = '{name}'::regtype ORDER BY enumsortorder")
        kept = [label for label in op.get_bind().scalars(query) if label != value]
        op.execute(f"ALTER TYPE {name} RENAME TO {name}_old")
        op.execute(f"CREATE TYPE {name} AS ENUM ({', '.join(repr(label) for label in kept)})")
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {name} USING {column}::text::{name}")
        op.execute(f"DROP TYPE {name}_old")
