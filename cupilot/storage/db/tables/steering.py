"""The tables of what people want of running jobs, and of what jobs have used of the GPUs.

A part of :mod:`cupilot.storage.db.tables.jobs`, which is where to import them from.
"""

from __future__ import annotations

import uuid
from datetime import date, datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.steering import DirectiveKind
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.base import Base, fk, id_column, now_column
from cupilot.storage.db.json_columns import JsonOf


class Directive(Base):
    """Something that a person wants of a job's evolution."""

    __tablename__ = "directives"
    __table_args__ = (
        CheckConstraint("kind <> 'ban' OR (technique IS NULL) <> (signature IS NULL)", name="ban"),
        CheckConstraint("kind <> 'inject' OR strategy IS NOT NULL", name="inject"),
        Index(
            "uq_directives_pin",
            "job_id",
            "candidate_id",
            unique=True,
            postgresql_where=text("kind = 'pin' AND lifted_at IS NULL"),
        ),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id")
    kind: Mapped[DirectiveKind]
    candidate_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="SET NULL"))
    """The pinned candidate; the one whose strategy is banned; the one, perhaps of another job, that is injected."""
    technique: Mapped[str | None] = mapped_column(String(64))
    """A banned technique."""
    strategy: Mapped[Strategy | None] = mapped_column(JsonOf(Strategy))
    """A banned or injected strategy."""
    signature: Mapped[str | None] = mapped_column(String(64))
    """Of a banned strategy."""
    kernel_hash: Mapped[str | None] = mapped_column(ForeignKey("kernels.hash"), index=True)
    """The code of an injected strategy, where it has any yet."""
    made_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="SET NULL"))
    """The candidate that an injection became."""
    author: Mapped[str] = mapped_column(String(100))
    """The user who wants it."""
    created_at: Mapped[datetime] = now_column()
    done_at: Mapped[datetime | None]
    """When an injection became a candidate."""
    lifted_at: Mapped[datetime | None]
    """When it was taken back."""


class GpuUsage(Base):
    """Seconds for which GPU workers held a job's steps, by day (UTC): what quotas are counted from."""

    __tablename__ = "gpu_usage"
    __table_args__ = (Index("ix_gpu_usage_team", "team_id", "day"),)

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    team_id: Mapped[uuid.UUID] = fk("teams.id", index=False)
    seconds: Mapped[float]
