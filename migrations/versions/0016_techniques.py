"""Techniques that agents invent, and the indexes by which the pool's entries say what they came to."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | Sequence[str] | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "novel_techniques",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("technique", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=16), nullable=False),
        sa.Column("meaning", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name=op.f("fk_novel_techniques_team_id_teams"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_novel_techniques_job_id_jobs"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_novel_techniques")),
        sa.UniqueConstraint(
            "team_id", "technique", "target", name=op.f("uq_novel_techniques_team_id_technique_target")
        ),
    )
    op.create_index("ix_pool_entries_team_problem", "pool_entries", ["team_id", "problem_hash"])
    op.create_index("ix_pool_entries_techniques", "pool_entries", ["techniques"], postgresql_using="gin")


def downgrade() -> None:
    op.drop_index("ix_pool_entries_techniques", table_name="pool_entries")
    op.drop_index("ix_pool_entries_team_problem", table_name="pool_entries")
    op.drop_table("novel_techniques")
