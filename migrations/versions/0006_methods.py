"""Several methods: their operators, stages and origins, what candidates note, how kernels are alike."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0006"
down_revision: str | Sequence[str] | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

ADDED = {
    "operator": ("code_crossover", "rewrite", "mutation", "translation", "optimisation", "composition"),
    "step_kind": ("merge", "convert", "check", "write"),
    "strategy_origin": ("merge", "code"),
}
COLUMNS = {
    "operator": ("candidates", "operator"),
    "step_kind": ("steps", "kind"),
    "strategy_origin": ("strategies", "origin"),
}


def upgrade() -> None:
    for name, values in ADDED.items():
        for value in values:
            op.execute(f"ALTER TYPE {name} ADD VALUE IF NOT EXISTS '{value}'")
    notes = sa.Column("notes", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    op.add_column("candidates", notes)
    op.add_column("kernels", sa.Column("likeness", sa.String(64), nullable=True))
    op.create_index(op.f("ix_kernels_likeness"), "kernels", ["likeness"])


def downgrade() -> None:
    """Jobs that the former schema has no words for go with it."""
    op.drop_index(op.f("ix_kernels_likeness"), table_name="kernels")
    op.drop_column("kernels", "likeness")
    op.drop_column("candidates", "notes")
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
