"""The tables of the queue: steps, messages to publish, workers and cards, drains, and when the scheduler looked."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    String,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.hardware import Device
from cupilot.domain.states import StepKind, StepState, WorkerKind
from cupilot.storage.db.base import Base, Json, fk, id_column, now_column
from cupilot.storage.db.json_columns import ValidatedJson


class Step(Base):
    """One unit of work: queued, leased, retried. Postgres is the truth; a Celery message is a hint."""

    __tablename__ = "steps"
    __table_args__ = (
        CheckConstraint(
            "(state = 'running') = (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL)", name="lease"
        ),
        CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="attempt"),
        CheckConstraint("(state IN ('succeeded','failed','cancelled')) = (finished_at IS NOT NULL)", name="finished"),
        UniqueConstraint("job_id", "key"),
        # What waits may be 100,000 rows, what is held or on its way never is: each look has an index of its own.
        Index(
            "ix_steps_waiting",
            *("queue", "job_id", "created_at", "id"),
            postgresql_where=text("state = 'queued' AND dispatched_at IS NULL"),
        ),
        Index(
            "ix_steps_touched",
            *("queue", "job_id"),
            postgresql_where=text(
                "finished_at IS NULL AND (state = 'running' OR dispatched_at IS NOT NULL OR busy_seconds > 0)"
            ),
        ),
        Index("ix_steps_sent", "queue", "created_at", postgresql_where=text("state = 'queued' AND dispatches > 0")),
        Index("ix_steps_open", "queue", "state", postgresql_where=text("finished_at IS NULL")),
        Index("ix_steps_usage", "queue", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
        Index("ix_steps_batched", "batch_id", postgresql_where=text("batch_id IS NOT NULL")),
        Index("ix_steps_leased", "lease_expires_at", postgresql_where=text("state = 'running'")),
    )

    id: Mapped[uuid.UUID] = id_column()
    job_id: Mapped[uuid.UUID] = fk("jobs.id", index=False)
    generation_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("generations.id", ondelete="CASCADE"))
    candidate_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("candidates.id", ondelete="CASCADE"), index=True)
    key: Mapped[str] = mapped_column(String(100))
    """Name of the step within its job, e.g. ``c12/revise/1``: a step cannot be made twice."""
    kind: Mapped[StepKind]
    queue: Mapped[str] = mapped_column(String(100))
    state: Mapped[StepState] = mapped_column(server_default=StepState.QUEUED.value)
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """Claims so far; the present one's fencing token while running."""
    max_attempts: Mapped[int] = mapped_column(server_default=text("3"))
    payload: Mapped[Json] = mapped_column(server_default=text("'{}'::jsonb"))
    error: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """Of what made it."""
    dispatched_at: Mapped[datetime | None]
    """Time at which a message was last written to the outbox; None while it waits in Postgres only."""
    dispatches: Mapped[int] = mapped_column(server_default=text("0"))
    """Messages sent for the next claim; more than a few, and some worker does not do its work."""
    not_before: Mapped[datetime | None]
    avoids: Mapped[str | None] = mapped_column(String(200))
    """A device that is to have it only where no other one of its class can: it failed there, or was measured there."""
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_expires_at: Mapped[datetime | None]
    batch_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("batches.id", ondelete="SET NULL"))
    """Batch that made the latest claim, where it was no worker's."""
    busy_seconds: Mapped[float] = mapped_column(server_default=text("0"))
    """For which workers held it, over all attempts that have ended."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    """Differs between the steps of one transaction: they are done in the order in which they were made."""
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


AT_A_WORKER = (Step.state == StepState.RUNNING) & Step.batch_id.is_(None)
"""Condition: a worker runs the step."""

IN_A_BATCH = (Step.state == StepState.RUNNING) & Step.batch_id.is_not(None)
"""Condition: a batch holds the step, for a machine that is none of this service's workers."""


class Outbox(Base):
    """Messages to publish, written in the transaction that makes them true."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_unsent", "id", postgresql_where=text("sent_at IS NULL")),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    topic: Mapped[str] = mapped_column(String(64))
    payload: Mapped[Json]
    created_at: Mapped[datetime] = now_column()
    sent_at: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))


class WorkerRow(Base):
    """A worker process that reports itself; slots bound what the scheduler publishes."""

    __tablename__ = "workers"
    __table_args__ = (CheckConstraint("slots >= 1", name="slots"),)

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[WorkerKind]
    queues: Mapped[list[str]] = mapped_column(JSONB)
    slots: Mapped[int]
    device: Mapped[Device | None] = mapped_column(ValidatedJson(Device))
    """Of a GPU worker."""
    version: Mapped[str] = mapped_column(String(64))
    healthy: Mapped[bool] = mapped_column(server_default=text("true"))
    note: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime] = now_column()
    heartbeat_at: Mapped[datetime] = now_column()


class CardLease(Base):
    """Which worker holds a card, until when."""

    __tablename__ = "card_leases"

    uid: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Of the card, as in :class:`cupilot.domain.hardware.Device`."""
    worker: Mapped[str] = mapped_column(String(200))
    since: Mapped[datetime] = now_column()
    expires_at: Mapped[datetime]


class Drain(Base):
    """Drain of a worker, by its name, or of the whole service (``*``)."""

    __tablename__ = "drains"

    scope: Mapped[str] = mapped_column(String(200), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    since: Mapped[datetime] = now_column()
    until_restart: Mapped[bool] = mapped_column(server_default=text("false"))
    """True for a worker that ends: its successor of the same name is not drained."""


class SchedulerTick(Base):
    """Last look of a scheduler in charge, and which one: one row, a sign of life for its successor."""

    __tablename__ = "scheduler_look"
    __table_args__ = (CheckConstraint("single", name="single"),)

    single: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    scheduler: Mapped[uuid.UUID]
    """A process, not a machine: made up anew by each."""
    at: Mapped[datetime]
    prune_after: Mapped[datetime | None]
    """None, or until when nothing is pruned, because the clock was set ahead."""
