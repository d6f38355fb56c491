"""Problems that the service ships, by content hash: the only ones whose results may be shared between teams.

Filled while the service runs. Entries that were shared before are hidden from other teams until a worker has read them
again, and stay private where their problem is not built-in.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0022"
down_revision: str | Sequence[str] | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "builtin_problems",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_builtin_problems")),
    )


def downgrade() -> None:
    op.drop_table("builtin_problems")
