"""The tables of tenants: teams, the users in them, and the keys that open them.

A part of :mod:`cupilot.storage.db.tables.jobs`, which is where to import them from.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.people import Role, Scope
from cupilot.domain.quota import QuotaPeriod
from cupilot.storage.db.base import Base, fk, id_column, now_column


class Team(Base):
    """A tenant."""

    __tablename__ = "teams"
    __table_args__ = (CheckConstraint("weight > 0", name="weight"),)

    id: Mapped[uuid.UUID] = id_column()
    name: Mapped[str] = mapped_column(String(100), unique=True)
    weight: Mapped[float] = mapped_column(server_default=text("1"))
    """Share of the cluster relative to other teams."""
    max_running_jobs: Mapped[int | None]
    max_queued_jobs: Mapped[int | None]
    gpu_seconds: Mapped[float | None]
    model_usd: Mapped[float | None]
    period: Mapped[QuotaPeriod] = mapped_column(server_default=QuotaPeriod.MONTH.value)
    """With the four above: :class:`cupilot.domain.quota.Quota`."""
    created_at: Mapped[datetime] = now_column()


class User(Base):
    """A person, or a service account of one team."""

    __tablename__ = "users"
    __table_args__ = (
        Index("uq_users_person", "name", unique=True, postgresql_where=text("team_id IS NULL")),
        Index("uq_users_service", "team_id", "name", unique=True, postgresql_where=text("team_id IS NOT NULL")),
        CheckConstraint("NOT (cluster_admin AND team_id IS NOT NULL)", name="cluster_admin"),
    )

    id: Mapped[uuid.UUID] = id_column()
    name: Mapped[str] = mapped_column(String(100))
    team_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("teams.id", ondelete="CASCADE"))
    """The team of a service account; None for a person, who may be in several."""
    cluster_admin: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime] = now_column()
    disabled_at: Mapped[datetime | None]
    """None of the user's keys is accepted any more."""


class Membership(Base):
    """That a user is in a team, and as what."""

    __tablename__ = "memberships"

    team_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("teams.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[Role]
    created_at: Mapped[datetime] = now_column()


class ApiKey(Base):
    """A user's key for one team; only its SHA-256 is kept."""

    __tablename__ = "api_keys"

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    user_id: Mapped[uuid.UUID] = fk("users.id")
    name: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    """The visible start of the key: how it is found and shown."""
    hash: Mapped[str] = mapped_column(String(64))
    scope: Mapped[Scope] = mapped_column(server_default=Scope.ADMIN.value)
    created_at: Mapped[datetime] = now_column()
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
