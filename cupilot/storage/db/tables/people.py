"""The tables of tenants: teams, the users in them, their keys, what they use of the GPUs, and the audit log."""

from __future__ import annotations

import uuid
from datetime import date, datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, String, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.people import Role, Scope
from cupilot.domain.quota import QuotaPeriod
from cupilot.storage.db.base import Base, Json, fk, id_column, now_column


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
    """Membership of a user in a team, with a role."""

    __tablename__ = "memberships"

    team_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("teams.id", ondelete="CASCADE"), primary_key=True)
    user_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True)
    role: Mapped[Role]
    created_at: Mapped[datetime] = now_column()


class Invitation(Base):
    """An invitation to join a team; only its secret's SHA-256 is kept."""

    __tablename__ = "invitations"

    id: Mapped[uuid.UUID] = id_column()
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    role: Mapped[Role]
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    author: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime] = now_column()
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    used_by: Mapped[str | None] = mapped_column(String(100))


class UserIdentity(Base):
    """The subject of an identity provider that signs in as a user."""

    __tablename__ = "user_identities"
    __table_args__ = (UniqueConstraint("issuer", "subject"), UniqueConstraint("user_id", "issuer"))

    id: Mapped[uuid.UUID] = id_column()
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    user_id: Mapped[uuid.UUID] = fk("users.id", index=False)
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


class GpuUsage(Base):
    """Seconds for which GPU workers held a job's steps, by day (UTC): what quotas are counted from."""

    __tablename__ = "gpu_usage"
    __table_args__ = (Index("ix_gpu_usage_team", "team_id", "day"),)

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    team_id: Mapped[uuid.UUID] = fk("teams.id", index=False)
    seconds: Mapped[float]


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
    """Object that was asked for or made."""
    status: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(16))
    """``done``, ``refused`` (4xx) or ``failed`` (5xx)."""
    request_id: Mapped[str] = mapped_column(String(128))
    address: Mapped[str | None] = mapped_column(String(64))
    changes: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    """``{field: [before, after]}`` of settings and rights (:mod:`cupilot.storage.db.changes`)."""
