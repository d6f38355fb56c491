"""Holders of cards, and the device of a step that no other device can do."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | Sequence[str] | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "card_leases",
        sa.Column("uid", sa.String(200), nullable=False),
        sa.Column("worker", sa.String(200), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_card_leases")),
    )
    op.add_column("steps", sa.Column("avoids", sa.String(200), nullable=True))


def downgrade() -> None:
    op.drop_column("steps", "avoids")
    op.drop_table("card_leases")
