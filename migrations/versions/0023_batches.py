"""Batches: steps exported to machines without a network, and since when a job's steps lie there."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0023"
down_revision: str | Sequence[str] | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

STATE = postgresql.ENUM(
    "exporting", "open", "empty", "finished", "cancelled", "expired", name="batch_state", create_type=False
)
OUTCOME = postgresql.ENUM(
    *("received", "settled", "retried", "failed", "cancelled", "stale", "released"),
    name="batch_outcome",
    create_type=False,
)
TARGET = postgresql.ENUM("cuda", "cpu", name="target", create_type=False)


def upgrade() -> None:
    STATE.create(op.get_bind())
    OUTCOME.create(op.get_bind())
    op.create_table(
        "batches",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("state", STATE, server_default="exporting", nullable=False),
        sa.Column("target", TARGET, nullable=False),
        sa.Column("device_class", sa.String(64), nullable=False),
        sa.Column("step_limit", sa.Integer(), nullable=False),
        sa.Column("lease_seconds", sa.Float(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("author", sa.String(100), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_batches_job_id_jobs"), ondelete="SET NULL"),
        sa.CheckConstraint("step_limit > 0 AND lease_seconds > 0", name=op.f("ck_batches_terms")),
        sa.CheckConstraint("ended_at IS NULL OR state NOT IN ('exporting', 'open')", name=op.f("ck_batches_ended")),
        sa.CheckConstraint(
            "state <> 'open' OR (manifest IS NOT NULL AND expires_at IS NOT NULL)", name=op.f("ck_batches_manifest")
        ),
    )
    op.create_index("ix_batches_open", "batches", ["state"], postgresql_where=sa.text("ended_at IS NULL"))
    op.create_index("ix_batches_created", "batches", ["created_at"])
    op.create_index(op.f("ix_batches_job_id"), "batches", ["job_id"])
    op.create_table(
        "batch_steps",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("step_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("entry", postgresql.JSONB(), nullable=False),
        sa.Column("outcome", OUTCOME, nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("record", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("device", postgresql.JSONB(), nullable=True),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("batch_id", "step_id", name=op.f("pk_batch_steps")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_steps_batch_id_batches"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["step_id"], ["steps.id"], name=op.f("fk_batch_steps_step_id_steps"), ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "(record IS NOT NULL) = (outcome IS NOT DISTINCT FROM 'received')", name=op.f("ck_batch_steps_record")
        ),
    )
    op.create_index(op.f("ix_batch_steps_step_id"), "batch_steps", ["step_id"])
    op.create_index(
        "ix_batch_steps_received", "batch_steps", ["batch_id"], postgresql_where=sa.text("outcome = 'received'")
    )
    op.create_table(
        "batch_objects",
        sa.Column("batch_id", sa.Uuid(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "hash", name=op.f("pk_batch_objects")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_objects_batch_id_batches"), ondelete="CASCADE"
        ),
    )
    op.add_column("steps", sa.Column("batch_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        op.f("fk_steps_batch_id_batches"), "steps", "batches", ["batch_id"], ["id"], ondelete="SET NULL"
    )
    op.create_index("ix_steps_batched", "steps", ["batch_id"], postgresql_where=sa.text("batch_id IS NOT NULL"))
    op.add_column("jobs", sa.Column("batched_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "batched_at")
    op.drop_index("ix_steps_batched", table_name="steps")
    op.drop_constraint(op.f("fk_steps_batch_id_batches"), "steps", type_="foreignkey")
    op.drop_column("steps", "batch_id")
    op.drop_table("batch_objects")
    op.drop_table("batch_steps")
    op.drop_table("batches")
    OUTCOME.drop(op.get_bind())
    STATE.drop(op.get_bind())
