"""The table of the audit log: who asked for what, and what came of it. A trigger refuses changes (migrations).

A part of :mod:`cupilot.storage.db.tables.jobs`.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, Identity, Index, String, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.storage.db.base import Base, Json, now_column


class AuditEntry(Base):
    """One request that changed something, or was not allowed to. It refers to nothing, so it outlives everything."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("ix_audit_log_team", "team_id", "id"), Index("ix_audit_log_at", "at"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    at: Mapped[datetime] = now_column()
    team_id: Mapped[uuid.UUID | None]
    principal: Mapped[str | None] = mapped_column(String(100))
    """The user's or service account's name; None for a request without a valid key."""
    key_prefix: Mapped[str | None] = mapped_column(String(16))
    """The visible start of the key that was sent, valid or not."""
    method: Mapped[str] = mapped_column(String(16))
    route: Mapped[str] = mapped_column(String(200))
    """The route's template, e.g. ``/v1/jobs/{job}/cancel``."""
    resource: Mapped[str] = mapped_column(Text)
    """What was asked for, or what was made."""
    status: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(16))
    """``done``, ``refused`` (4xx) or ``failed`` (5xx)."""
    request_id: Mapped[str] = mapped_column(String(128))
    address: Mapped[str | None] = mapped_column(String(64))
    changes: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    """``{field: [before, after]}`` of settings and rights (:mod:`cupilot.storage.db.changes`)."""
