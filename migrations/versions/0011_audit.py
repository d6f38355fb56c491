"""The audit log, which refuses to be changed."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | Sequence[str] | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

APPEND_ONLY = """
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Only retention deletes, and says so in its own transaction.
    IF TG_OP = 'DELETE' AND coalesce(current_setting('cupilot.audit_prune', true), '') = '1' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only';
END $$
"""


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("team_id", sa.Uuid(), nullable=True),
        sa.Column("principal", sa.String(length=100), nullable=True),
        sa.Column("key_prefix", sa.String(length=16), nullable=True),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("route", sa.String(length=200), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=True),
    )
    op.create_index("ix_audit_log_team", "audit_log", ["team_id", "id"])
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    op.execute(APPEND_ONLY)
    op.execute(
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_log"
        " FOR EACH ROW EXECUTE FUNCTION audit_append_only()"
    )


def downgrade() -> None:
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION audit_append_only()")
