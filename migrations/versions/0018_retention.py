"""Marks of what retention has pruned, and the indexes by which it finds what may go."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | Sequence[str] | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

UNPRUNED = sa.text("finished_at IS NOT NULL AND pruned_at IS NULL")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("kernels", sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_jobs_unpruned", "jobs", ["finished_at"], postgresql_where=UNPRUNED)
    op.create_index("ix_candidates_kernel_hash", "candidates", ["kernel_hash"])
    op.create_index("ix_directives_kernel_hash", "directives", ["kernel_hash"])


def downgrade() -> None:
    op.drop_index("ix_directives_kernel_hash", table_name="directives")
    op.drop_index("ix_candidates_kernel_hash", table_name="candidates")
    op.drop_index("ix_jobs_unpruned", table_name="jobs")
    op.drop_column("kernels", "pruned_at")
    op.drop_column("jobs", "pruned_at")
