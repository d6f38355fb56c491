"""The tables of webhooks: endpoints, what is to be delivered to them, and every attempt."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.storage.db.base import Base, fk, id_column, now_column


class WebhookEndpoint(Base):
    """Receiver of a team's events."""

    __tablename__ = "webhook_endpoints"
    __table_args__ = (
        CheckConstraint("enabled = (disabled_reason IS NULL)", name="disabled_has_reason"),
        CheckConstraint("(previous_secret IS NULL) = (previous_until IS NULL)", name="previous"),
        Index("ix_webhook_endpoints_enabled", "team_id", postgresql_where=text("enabled")),
    )

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    url: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(String(200), server_default=text("''"))
    events: Mapped[list[str]] = mapped_column(JSONB)
    """Patterns of event kinds, e.g. ``job.*``."""
    secret: Mapped[str] = mapped_column(String(100))
    """In plain text: each message is signed with it."""
    previous_secret: Mapped[str | None] = mapped_column(String(100))
    previous_until: Mapped[datetime | None]
    """Until then messages are signed with both."""
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    disabled_reason: Mapped[str | None] = mapped_column(String(64))
    failing_since: Mapped[datetime | None]
    """The first failure after the last success."""
    after_event: Mapped[int | None] = mapped_column(BigInteger)
    """The newest settled event at its creation: those after it are sent. None where the release before 0029 made it."""
    created_at: Mapped[datetime] = now_column()


class WebhookDelivery(Base):
    """One message for one endpoint: sent until it is accepted or has used up its attempts."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        UniqueConstraint("endpoint_id", "event_id"),
        CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="finished"),
        CheckConstraint("outcome IN ('delivered', 'failed')", name="outcome"),
        CheckConstraint("attempts BETWEEN 0 AND max_attempts", name="attempts"),
        Index("ix_webhook_deliveries_due", "next_attempt_at", postgresql_where=text("finished_at IS NULL")),
        Index("ix_webhook_deliveries_log", "endpoint_id", text("created_at DESC"), text("id DESC")),
        Index("ix_webhook_deliveries_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    )

    id: Mapped[uuid.UUID] = id_column()
    """Sent as ``webhook-id``: by it a receiver knows a message that comes twice."""
    endpoint_id: Mapped[uuid.UUID] = fk("webhook_endpoints.id", index=False)
    event_id: Mapped[int | None] = mapped_column(BigInteger)
    """None for a ping."""
    kind: Mapped[str] = mapped_column(String(64))
    body: Mapped[str] = mapped_column(Text)
    """Exactly what is sent and signed."""
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int]
    next_attempt_at: Mapped[datetime] = now_column()
    """While an attempt is under way: when it counts as lost."""
    outcome: Mapped[str | None] = mapped_column(String(16))
    created_at: Mapped[datetime] = now_column()
    finished_at: Mapped[datetime | None]


class WebhookAttempt(Base):
    """One try to deliver. Without an outcome it is under way, or was cut off."""

    __tablename__ = "webhook_attempts"

    delivery_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    outcome: Mapped[str | None] = mapped_column(String(32))
    status: Mapped[int | None]
    milliseconds: Mapped[int | None]
    excerpt: Mapped[str | None] = mapped_column(Text)
    """The beginning of the response, or what went wrong."""
    started_at: Mapped[datetime] = now_column()


class WebhookPosition(Base):
    """Position up to which events have become deliveries; one row."""

    __tablename__ = "webhook_position"
    __table_args__ = (CheckConstraint("id = 1", name="one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    event_id: Mapped[int] = mapped_column(BigInteger)
