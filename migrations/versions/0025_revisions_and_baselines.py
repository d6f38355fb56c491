"""Performance revisions (a kind of step), and the operators of EoH and FunSearch."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | Sequence[str] | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ADDED = {"operator": ("explore", "recombine", "retune", "next_version"), "step_kind": ("improve",)}
COLUMNS = {"operator": ("candidates", "operator"), "step_kind": ("steps", "kind")}


def upgrade() -> None:
    for name, values in ADDED.items():
        for value in values:
            op.execute(f"ALTER TYPE {name} ADD VALUE IF NOT EXISTS '{value}'")


def downgrade() -> None:
    """Jobs that the former schema has no words for go with it."""
    for name, (table, column) in COLUMNS.items():
        gone = ", ".join(f"'{value}'" for value in ADDED[name])
        op.execute(f"DELETE FROM jobs WHERE id IN (SELECT job_id FROM {table} WHERE {column}::text IN ({gone}))")
    for name, (table, column) in COLUMNS.items():
        _without(name, ADDED[name], table, column)


def _without(name: str, values: Sequence[str], table: str, column: str) -> None:
    """Postgres cannot take a value out of a type: the type is made anew, with whatever else it has now."""
    query = sa.text(f"SELECT enumlabel FROM pg_enum WHERE enumtypid = '{name}'::regtype ORDER BY enumsortorder")
    kept = [label for label in op.get_bind().scalars(query) if label not in values]
    op.execute(f"ALTER TYPE {name} RENAME TO {name}_old")
    op.execute(f"CREATE TYPE {name} AS ENUM ({', '.join(repr(label) for label in kept)})")
    op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {name} USING {column}::text::{name}")
    op.execute(f"DROP TYPE {name}_old")
