"""Indexes for long backlogs: what waits, what is held or on its way, what was sent. Each look reads its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | Sequence[str] | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

WAITING = sa.text("state = 'queued' AND dispatched_at IS NULL")
TOUCHED = sa.text("finished_at IS NULL AND (state = 'running' OR dispatched_at IS NOT NULL OR busy_seconds > 0)")
SENT = sa.text("state = 'queued' AND dispatches > 0")


def upgrade() -> None:
    op.create_index("ix_steps_waiting", "steps", ["queue", "job_id", "created_at", "id"], postgresql_where=WAITING)
    op.create_index("ix_steps_touched", "steps", ["queue", "job_id"], postgresql_where=TOUCHED)
    op.create_index("ix_steps_sent", "steps", ["queue", "created_at"], postgresql_where=SENT)
    op.drop_index("ix_steps_ready", table_name="steps")


def downgrade() -> None:
    op.create_index("ix_steps_ready", "steps", ["queue", "created_at"], postgresql_where=sa.text("state = 'queued'"))
    op.drop_index("ix_steps_sent", table_name="steps")
    op.drop_index("ix_steps_touched", table_name="steps")
    op.drop_index("ix_steps_waiting", table_name="steps")
