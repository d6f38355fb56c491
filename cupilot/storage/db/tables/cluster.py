"""The tables of the cluster: workers, which of them holds a card, what takes nothing new, when the scheduler looked.

A part of :mod:`cupilot.storage.db.tables.jobs`, which is where to import them from.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, String, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from cupilot.domain.hardware import Device
from cupilot.domain.states import WorkerKind
from cupilot.storage.db.base import Base, now_column
from cupilot.storage.db.json_columns import JsonOf


class WorkerRow(Base):
    """A worker process that reports itself; slots bound what the scheduler publishes."""

    __tablename__ = "workers"
    __table_args__ = (CheckConstraint("slots >= 1", name="slots"),)

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    kind: Mapped[WorkerKind]
    queues: Mapped[list[str]] = mapped_column(JSONB)
    slots: Mapped[int]
    device: Mapped[Device | None] = mapped_column(JsonOf(Device))
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
    """What takes nothing new: a worker by its name, or ``*``, the whole service."""

    __tablename__ = "drains"

    scope: Mapped[str] = mapped_column(String(200), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    since: Mapped[datetime] = now_column()


class SchedulerLook(Base):
    """When a scheduler in charge last looked, and which one: one row, a sign of life for the next one."""

    __tablename__ = "scheduler_look"
    __table_args__ = (CheckConstraint("single", name="single"),)

    single: Mapped[bool] = mapped_column(primary_key=True, server_default=text("true"))
    scheduler: Mapped[uuid.UUID]
    """A process, not a machine: made up anew by each."""
    at: Mapped[datetime]
