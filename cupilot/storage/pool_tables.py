"""The part of the schema that outlives jobs: the strategy pool's truth, and what techniques are worth."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.storage.base import Base, Json, fk, id_column, now_column


class PoolRow(Base):
    """The truth of the strategy pool; Chroma holds only an index that can be rebuilt from it."""

    __tablename__ = "pool_entries"
    __table_args__ = (Index("ix_pool_entries_unindexed", "created_at", postgresql_where=text("indexed_at IS NULL")),)

    id: Mapped[uuid.UUID] = id_column()
    """The evaluation's id."""
    team_id: Mapped[uuid.UUID] = fk("teams.id")
    body: Mapped[Json]
    """:class:`cupilot.pool.PoolEntry` as JSON."""
    indexed_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = now_column()


class CreditRow(Base):
    """What one technique of a winner is worth: one row a technique, however often its step is done."""

    __tablename__ = "credits"
    __table_args__ = (UniqueConstraint("candidate_id", "technique"),)

    id: Mapped[uuid.UUID] = id_column()
    candidate_id: Mapped[uuid.UUID] = fk("candidates.id", index=False)
    position: Mapped[int]
    """Of the technique in the strategy."""
    technique: Mapped[str] = mapped_column(String(64))
    evaluation_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("evaluations.id", ondelete="SET NULL"))
    """Of the kernel without it, where one was measured."""
    body: Mapped[Json]
    """:class:`cupilot.attribution.Credit` as JSON."""
    created_at: Mapped[datetime] = now_column()
