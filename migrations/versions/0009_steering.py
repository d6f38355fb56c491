"""Paused jobs, directives, jobs that continue others, quotas, and seconds of workers.

The value ``paused`` of ``job_state``, and ``injected`` of ``operator``, stay after a downgrade: a value of a type that
is in use cannot be taken away, and does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0009"
down_revision: str | Sequence[str] | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

KIND = postgresql.ENUM("pin", "ban", "inject", name="directive_kind", create_type=False)
PERIOD = postgresql.ENUM("day", "week", "month", name="quota_period", create_type=False)


def upgrade() -> None:
    op.execute("ALTER TYPE job_state ADD VALUE IF NOT EXISTS 'paused'")
    op.execute("ALTER TYPE operator ADD VALUE IF NOT EXISTS 'injected'")
    KIND.create(op.get_bind())
    PERIOD.create(op.get_bind())
    _jobs()
    op.add_column("steps", sa.Column("busy_seconds", sa.Double(), server_default=sa.text("0"), nullable=False))
    for name, kind in (
        ("max_running_jobs", sa.Integer()),
        ("max_queued_jobs", sa.Integer()),
        ("gpu_seconds", sa.Double()),
        ("model_usd", sa.Double()),
    ):
        op.add_column("teams", sa.Column(name, kind, nullable=True))
    op.add_column("teams", sa.Column("period", PERIOD, server_default="month", nullable=False))
    _directives()
    op.create_table(
        "gpu_usage",
        sa.Column("job_id", sa.Uuid(), primary_key=True),
        sa.Column("day", sa.Date(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_gpu_usage_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_gpu_usage_team_id_teams"), ondelete="CASCADE"),
    )
    op.create_index("ix_gpu_usage_team", "gpu_usage", ["team_id", "day"])


def downgrade() -> None:
    op.drop_table("gpu_usage")
    op.drop_table("directives")
    for column in ("max_running_jobs", "max_queued_jobs", "gpu_seconds", "model_usd", "period"):
        op.drop_column("teams", column)
    op.drop_column("steps", "busy_seconds")
    op.drop_constraint(op.f("ck_jobs_paused"), "jobs")
    op.execute(
        "UPDATE jobs SET state = CASE WHEN preparation IS NOT NULL THEN 'evolving'::job_state"
        " WHEN started_at IS NOT NULL THEN 'preparing'::job_state ELSE 'queued'::job_state END"
        " WHERE state::text = 'paused'"
    )
    op.execute("UPDATE candidates SET operator = 'initial' WHERE operator::text = 'injected'")
    for column in ("paused_at", "paused_seconds", "retry_of_id", "forked_from_id"):
        op.drop_column("jobs", column)
    PERIOD.drop(op.get_bind())
    KIND.drop(op.get_bind())


def _jobs() -> None:
    op.add_column("jobs", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("paused_seconds", sa.Double(), server_default=sa.text("0"), nullable=False))
    op.add_column("jobs", sa.Column("retry_of_id", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("forked_from_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        op.f("fk_jobs_retry_of_id_jobs"), "jobs", "jobs", ["retry_of_id"], ["id"], ondelete="SET NULL"
    )
    op.create_foreign_key(
        op.f("fk_jobs_forked_from_id_candidates"),
        "jobs",
        "candidates",
        ["forked_from_id"],
        ["id"],
        ondelete="SET NULL",
    )
    # As text: a value that was added in this transaction cannot be used in it.
    op.create_check_constraint(op.f("ck_jobs_paused"), "jobs", "(state::text = 'paused') = (paused_at IS NOT NULL)")


def _directives() -> None:
    op.create_table(
        "directives",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("kind", KIND, nullable=False),
        sa.Column("candidate_id", sa.Uuid(), nullable=True),
        sa.Column("technique", sa.String(length=64), nullable=True),
        sa.Column("strategy", postgresql.JSONB(), nullable=True),
        sa.Column("signature", sa.String(length=64), nullable=True),
        sa.Column("kernel_hash", sa.String(length=64), nullable=True),
        sa.Column("made_id", sa.Uuid(), nullable=True),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lifted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "kind <> 'ban' OR (technique IS NULL) <> (signature IS NULL)", name=op.f("ck_directives_ban")
        ),
        sa.CheckConstraint("kind <> 'inject' OR strategy IS NOT NULL", name=op.f("ck_directives_inject")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_directives_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["candidate_id"], ["candidates.id"], name=op.f("fk_directives_candidate_id_candidates"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["kernel_hash"], ["kernels.hash"], name=op.f("fk_directives_kernel_hash_kernels")),
        sa.ForeignKeyConstraint(
            ["made_id"], ["candidates.id"], name=op.f("fk_directives_made_id_candidates"), ondelete="SET NULL"
        ),
    )
    op.create_index(op.f("ix_directives_job_id"), "directives", ["job_id"])
    pinned = sa.text("kind = 'pin' AND lifted_at IS NULL")
    op.create_index("uq_directives_pin", "directives", ["job_id", "candidate_id"], unique=True, postgresql_where=pinned)
