"""Time of the acting scheduler's last look: what lies between that and the next look may be no wall time of any job."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | Sequence[str] | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "scheduler_look",
        sa.Column("single", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("scheduler", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("single", name=op.f("ck_scheduler_look_single")),
        sa.PrimaryKeyConstraint("single", name=op.f("pk_scheduler_look")),
    )


def downgrade() -> None:
    op.drop_table("scheduler_look")
