"""Author of a job, and an index of a job's states, which every look at it tells."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | Sequence[str] | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("author", sa.String(length=100), nullable=True))
    op.create_index("ix_events_states", "events", ["job_id", "id"], postgresql_where=sa.text("kind LIKE 'job.%'"))


def downgrade() -> None:
    op.drop_index("ix_events_states", table_name="events")
    op.drop_column("jobs", "author")
