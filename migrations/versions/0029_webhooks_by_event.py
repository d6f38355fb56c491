"""Webhooks keep the event that they begin after; a time would depend on the database's clock."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | Sequence[str] | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("webhook_endpoints", sa.Column("after_event", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("webhook_endpoints", "after_event")
