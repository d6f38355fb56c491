"""The tables of batches: exported steps, the objects of their files, and results that wait to be settled."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.batches.manifest import BatchEntry
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.domain.states import BatchOutcome, BatchState
from cupilot.storage.db.base import Base, id_column, now_column
from cupilot.storage.db.json_columns import ValidatedJson


class Batch(Base):
    """Steps that one export took, and the terms of their lease."""

    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint("step_limit > 0 AND lease_seconds > 0", name="terms"),
        CheckConstraint("ended_at IS NULL OR state NOT IN ('exporting', 'open')", name="ended"),
        CheckConstraint("state <> 'open' OR (manifest IS NOT NULL AND expires_at IS NOT NULL)", name="manifest"),
        Index("ix_batches_open", "state", postgresql_where=text("ended_at IS NULL")),
        Index("ix_batches_created", "created_at"),
    )

    id: Mapped[uuid.UUID] = id_column()
    state: Mapped[BatchState] = mapped_column(server_default=BatchState.EXPORTING.value)
    target: Mapped[Target]
    device_class: Mapped[str] = mapped_column(String(64))
    step_limit: Mapped[int]
    lease_seconds: Mapped[float]
    job_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    """The only job whose steps it takes; None for all."""
    author: Mapped[str] = mapped_column(String(100))
    """The user who exported it."""
    key: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    """Signs its manifest; never leaves the service."""
    manifest: Mapped[str | None] = mapped_column(Text, deferred=True)
    """Exactly as it was signed."""
    created_at: Mapped[datetime] = now_column()
    expires_at: Mapped[datetime | None]
    """End of the lease; None until it is exported."""
    ended_at: Mapped[datetime | None]
    """Time of its last step's outcome; None of one that was cancelled and still holds steps."""


class BatchStep(Base):
    """One step of a batch, and what came of it."""

    __tablename__ = "batch_steps"
    __table_args__ = (
        CheckConstraint("(record IS NOT NULL) = (outcome IS NOT DISTINCT FROM 'received')", name="record"),
        Index("ix_batch_steps_received", "batch_id", postgresql_where=text("outcome = 'received'")),
    )

    batch_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    step_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True, index=True)
    position: Mapped[int]
    entry: Mapped[BatchEntry] = mapped_column(ValidatedJson(BatchEntry))
    outcome: Mapped[BatchOutcome | None]
    """None while the batch holds the step and no result has come."""
    detail: Mapped[str | None] = mapped_column(Text)
    record: Mapped[str | None] = mapped_column(Text, deferred=True)
    """The result as it came, until it is settled."""
    seconds: Mapped[float | None]
    device: Mapped[Device | None] = mapped_column(ValidatedJson(Device))
    """Device that judged it."""
    settled_at: Mapped[datetime | None]


class BatchObject(Base):
    """An object of a batch's file, kept while the batch may be fetched."""

    __tablename__ = "batch_objects"

    batch_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    body: Mapped[str] = mapped_column(Text)
