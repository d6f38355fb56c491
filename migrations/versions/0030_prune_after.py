"""No pruning for some hours after a step of the database's clock."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0030"
down_revision: str | Sequence[str] | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("scheduler_look", sa.Column("prune_after", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("scheduler_look", "prune_after")
