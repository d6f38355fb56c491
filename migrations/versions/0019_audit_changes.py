"""Changes of a request in the audit log; and the log cannot be emptied as a whole either."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0019"
down_revision: str | Sequence[str] | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("changes", JSONB(none_as_null=True), nullable=True))
    op.execute(
        "CREATE TRIGGER audit_never_emptied BEFORE TRUNCATE ON audit_log"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER audit_never_emptied ON audit_log")
    op.drop_column("audit_log", "changes")
