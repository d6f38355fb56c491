"""Experiments: a matrix of jobs, each of which names its experiment and its arm."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | Sequence[str] | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_experiments_team_id_teams", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
        sa.UniqueConstraint("team_id", "idempotency_key", name="uq_experiments_team_id_idempotency_key"),
    )
    op.create_index(
        "ix_experiments_team_created", "experiments", ["team_id", sa.text("created_at DESC"), sa.text("id DESC")]
    )
    op.add_column("jobs", sa.Column("experiment_id", sa.Uuid(), nullable=True))
    op.add_column("jobs", sa.Column("arm", sa.String(length=100), nullable=True))
    op.create_foreign_key(
        "fk_jobs_experiment_id_experiments", "jobs", "experiments", ["experiment_id"], ["id"], ondelete="CASCADE"
    )
    op.create_unique_constraint(
        "uq_jobs_experiment_id_arm_problem_id_seed", "jobs", ["experiment_id", "arm", "problem_id", "seed"]
    )
    op.create_check_constraint(op.f("ck_jobs_arm"), "jobs", "(experiment_id IS NULL) = (arm IS NULL)")


def downgrade() -> None:
    op.drop_constraint(op.f("ck_jobs_arm"), "jobs", type_="check")
    op.drop_constraint("uq_jobs_experiment_id_arm_problem_id_seed", "jobs", type_="unique")
    op.drop_constraint("fk_jobs_experiment_id_experiments", "jobs", type_="foreignkey")
    op.drop_column("jobs", "arm")
    op.drop_column("jobs", "experiment_id")
    op.drop_table("experiments")
