"""The pool's descriptions and their words, and what entries are searched by. Old entries are read again by a worker."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0007"
down_revision: str | Sequence[str] | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

COLUMNS = (
    "sharing",
    "reference_id",
    "shared_reference_id",
    "problem_hash",
    "signature",
    "techniques",
    "device_class",
    "gain",
    "failure",
    "imported",
    "measured_at",
)


def upgrade() -> None:
    op.create_table(
        "pool_references",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("scope", sa.String(length=36), nullable=False),
        sa.Column("target", sa.String(length=16), nullable=False),
        sa.Column("policy", sa.String(length=16), nullable=False),
        sa.Column("op_class", sa.String(length=64), nullable=False),
        sa.Column("zone", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("indexed_at", sa.DateTime(timezone=True), nullable=True),
    )
    op.create_index("ix_pool_references_place", "pool_references", ["scope", "target", "policy", "op_class"])
    op.create_index(
        "ix_pool_references_unindexed", "pool_references", ["id"], postgresql_where=sa.text("indexed_at IS NULL")
    )
    op.create_table(
        "pool_terms",
        sa.Column("reference_id", sa.Uuid(), primary_key=True),
        sa.Column("term", sa.String(length=100), primary_key=True),
        sa.Column("occurrences", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["reference_id"],
            ["pool_references.id"],
            name=op.f("fk_pool_terms_reference_id_pool_references"),
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_pool_terms_term", "pool_terms", ["term"])
    _add_columns()
    op.drop_index("ix_pool_entries_unindexed", table_name="pool_entries")
    op.drop_column("pool_entries", "indexed_at")


def _add_columns() -> None:
    words = [("problem_hash", 64), ("signature", 64), ("device_class", 64)]
    for name, length in words:
        op.add_column("pool_entries", sa.Column(name, sa.String(length=length), server_default="", nullable=False))
    op.add_column("pool_entries", sa.Column("sharing", sa.String(length=16), server_default="private", nullable=False))
    op.add_column("pool_entries", sa.Column("reference_id", sa.Uuid(), nullable=True))
    op.add_column("pool_entries", sa.Column("shared_reference_id", sa.Uuid(), nullable=True))
    op.add_column(
        "pool_entries",
        sa.Column("techniques", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
    )
    op.add_column("pool_entries", sa.Column("gain", sa.Double(), nullable=True))
    op.add_column("pool_entries", sa.Column("failure", sa.String(length=64), nullable=True))
    op.add_column("pool_entries", sa.Column("imported", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column(
        "pool_entries",
        sa.Column("measured_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    for name in ("reference_id", "shared_reference_id"):
        key = op.f(f"fk_pool_entries_{name}_pool_references")
        op.create_foreign_key(key, "pool_entries", "pool_references", [name], ["id"])
    op.create_check_constraint(
        op.f("ck_pool_entries_sharing"), "pool_entries", "sharing IN ('private', 'anonymous', 'open')"
    )
    op.create_check_constraint(
        op.f("ck_pool_entries_shared"), "pool_entries", "(sharing = 'private') = (shared_reference_id IS NULL)"
    )
    op.create_index(op.f("ix_pool_entries_reference_id"), "pool_entries", ["reference_id"])
    op.create_index(
        "ix_pool_entries_team_created", "pool_entries", ["team_id", sa.text("created_at DESC"), sa.text("id DESC")]
    )
    op.create_index(
        "ix_pool_entries_unread", "pool_entries", ["created_at"], postgresql_where=sa.text("reference_id IS NULL")
    )
    op.create_index(
        "ix_pool_entries_shared",
        "pool_entries",
        ["shared_reference_id"],
        postgresql_where=sa.text("sharing <> 'private'"),
    )


def downgrade() -> None:
    op.add_column("pool_entries", sa.Column("indexed_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_pool_entries_unindexed", "pool_entries", ["created_at"], postgresql_where=sa.text("indexed_at IS NULL")
    )
    op.drop_index("ix_pool_entries_team_created", table_name="pool_entries")
    op.drop_index("ix_pool_entries_unread", table_name="pool_entries")
    op.drop_index("ix_pool_entries_shared", table_name="pool_entries")
    for name in COLUMNS:
        op.drop_column("pool_entries", name)
    op.drop_table("pool_terms")
    op.drop_table("pool_references")
