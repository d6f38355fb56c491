"""Webhooks: endpoints of teams, deliveries of events to them, attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0012"
down_revision: str | Sequence[str] | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

NOW = sa.text("now()")


def _time(name: str, *, nullable: bool = False) -> sa.Column[datetime]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=None if nullable else NOW, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("team_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.String(length=200), server_default=sa.text("''"), nullable=False),
        sa.Column("events", postgresql.JSONB(), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("previous_secret", sa.String(length=100), nullable=True),
        _time("previous_until", nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("disabled_reason", sa.String(length=64), nullable=True),
        _time("failing_since", nullable=True),
        _time("created_at"),
        sa.CheckConstraint(
            "enabled = (disabled_reason IS NULL)", name=op.f("ck_webhook_endpoints_disabled_has_reason")
        ),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_until IS NULL)", name=op.f("ck_webhook_endpoints_previous")
        ),
        sa.ForeignKeyConstraint(
            ["team_id"], ["teams.id"], name=op.f("fk_webhook_endpoints_team_id_teams"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_webhook_endpoints_team_id"), "webhook_endpoints", ["team_id"])
    op.create_index(
        "ix_webhook_endpoints_enabled", "webhook_endpoints", ["team_id"], postgresql_where=sa.text("enabled")
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        _time("next_attempt_at"),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        _time("created_at"),
        _time("finished_at", nullable=True),
        sa.CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name=op.f("ck_webhook_deliveries_finished")),
        sa.CheckConstraint("outcome IN ('delivered', 'failed')", name=op.f("ck_webhook_deliveries_outcome")),
        sa.CheckConstraint("attempts BETWEEN 0 AND max_attempts", name=op.f("ck_webhook_deliveries_attempts")),
        sa.UniqueConstraint("endpoint_id", "event_id", name=op.f("uq_webhook_deliveries_endpoint_id_event_id")),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_deliveries_endpoint_id_webhook_endpoints"),
            ondelete="CASCADE",
        ),
    )
    unfinished, finished = sa.text("finished_at IS NULL"), sa.text("finished_at IS NOT NULL")
    op.create_index("ix_webhook_deliveries_due", "webhook_deliveries", ["next_attempt_at"], postgresql_where=unfinished)
    op.create_index(
        "ix_webhook_deliveries_log",
        "webhook_deliveries",
        ["endpoint_id", sa.text("created_at DESC"), sa.text("id DESC")],
    )
    op.create_index("ix_webhook_deliveries_finished", "webhook_deliveries", ["finished_at"], postgresql_where=finished)
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.Uuid(), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("milliseconds", sa.Integer(), nullable=True),
        sa.Column("excerpt", sa.Text(), nullable=True),
        _time("started_at"),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name=op.f("fk_webhook_attempts_delivery_id_webhook_deliveries"),
            ondelete="CASCADE",
        ),
    )
    op.create_table(
        "webhook_position",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_webhook_position_one")),
    )


def downgrade() -> None:
    for table in ("webhook_position", "webhook_attempts", "webhook_deliveries", "webhook_endpoints"):
        op.drop_table(table)
