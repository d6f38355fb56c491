"""Trace context of a job, and the maker of a step."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | Sequence[str] | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table in ("jobs", "steps"):
        op.add_column(table, sa.Column("traceparent", sa.String(length=55), nullable=True))


def downgrade() -> None:
    for table in ("steps", "jobs"):
        op.drop_column(table, "traceparent")
