"""Attribution of a winner's gain to its techniques: steps that measure it, and where it is kept."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | Sequence[str] | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NEW_VALUES = {
    "step_kind": ("steps", "kind", ("ablate", "attribute")),
    "evaluation_purpose": ("evaluations", "purpose", ("attribute",)),
    "strategy_origin": ("strategies", "origin", ("ablation",)),
}
"""Type: its table and column, and what is added."""


def upgrade() -> None:
    for kind, (_, _, values) in NEW_VALUES.items():
        for value in values:
            op.execute(f"ALTER TYPE {kind} ADD VALUE IF NOT EXISTS '{value}'")
    op.add_column(
        "jobs", sa.Column("learning", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.create_table(
        "credits",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("candidate_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("technique", sa.String(length=64), nullable=False),
        sa.Column("evaluation_id", sa.Uuid(), nullable=True),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_credits_candidate_id_candidates"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
            name=op.f("fk_credits_evaluation_id_evaluations"),
            ondelete="SET NULL",
        ),
        sa.UniqueConstraint("candidate_id", "technique", name=op.f("uq_credits_candidate_id_technique")),
    )


def downgrade() -> None:
    op.drop_table("credits")
    op.drop_column("jobs", "learning")
    for kind, (table, column, values) in NEW_VALUES.items():
        _take_away(kind, table, column, values)


def _take_away(kind: str, table: str, column: str, values: Sequence[str]) -> None:
    """Rows that need the values go; Postgres cannot drop a value, so the type is made anew without them."""
    gone = ", ".join(f"'{value}'" for value in values)
    op.execute(f"DELETE FROM {table} WHERE {column}::text IN ({gone})")
    bind = op.get_bind()
    labels = bind.scalars(sa.text(f"SELECT unnest(enum_range(NULL::{kind}))::text"))
    kept = ", ".join(f"'{label}'" for label in labels if label not in values)
    op.execute(f"ALTER TYPE {kind} RENAME TO {kind}_old")
    op.execute(f"CREATE TYPE {kind} AS ENUM ({kept})")
    op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind} USING {column}::text::{kind}")
    op.execute(f"DROP TYPE {kind}_old")
