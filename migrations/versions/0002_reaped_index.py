"""Lease expirations are counted often: an index that holds nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | Sequence[str] | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_events_reaped", "events", ["id"], postgresql_where=sa.text("kind = 'step.reaped'"))


def downgrade() -> None:
    op.drop_index("ix_events_reaped", table_name="events")
