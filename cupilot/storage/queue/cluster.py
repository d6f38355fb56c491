"""Register workers and read the cluster: workers with the age of their heartbeats, queues with their load."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, case, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.domain.states import StepState, WorkerKind
from cupilot.storage.db.engine import notify, settings_of
from cupilot.storage.db.tables.queue import AT_A_WORKER, IN_A_BATCH, Drain, Step, WorkerRow
from cupilot.storage.queue.cards import release_card, take_card

SCHEDULER_LOCK = 0x6375_7069_0000_0001
"""Key of the Postgres advisory lock that the scheduler in charge holds ("cupi" and a number)."""
SCHEDULER_SILENCE = timedelta(seconds=60)
"""Time after which a scheduler that has not looked, which it does each second, is taken to hang."""

NO_WORKER = "no_worker_for_target"
"""Reason of an open job whose next step no live worker can take."""
NO_WORKER_MESSAGE = (
    "no live GPU worker serves this job's target, so it waits for one: start one, cancel the job and name a target that"
    " has one, or measure on a machine without a network (cupilot batch export --help)"
)

WORKER_KEPT = timedelta(minutes=10)
"""Time after which a silent worker's row is pruned from the overview."""
CARD_KEPT = timedelta(days=3)
"""The same where its card has no worker since: the alert of a card out of use rests on the row."""


@dataclass(frozen=True)
class WorkerView:
    """A worker and how long ago it last reported."""

    worker: WorkerRow
    heartbeat_age_seconds: float
    live: bool
    """Healthy and heard of within the lease time: the scheduler counts on its slots."""
    busy: int
    """Steps it holds now."""


@dataclass(frozen=True)
class QueueCounts:
    """Open steps of a queue."""

    queued: int = 0
    running: int = 0
    """At a worker."""
    in_batches: int = 0
    """Held by a batch, which has no worker of this service's."""


@dataclass(frozen=True)
class ClusterView:
    """Workers of the cluster, and the load of its queues."""

    workers: Sequence[WorkerView]
    queues: Mapping[str, QueueCounts]
    scheduler_alive: bool


def register_worker(
    session: Session,
    name: str,
    kind: WorkerKind,
    *,
    queues: Sequence[str],
    slots: int,
    version: str,
    device: Device | None,
) -> None:
    """Report a worker that has come up and holds its card; one of the same name is replaced.

    A drain of it that was to last until this start ends. Raises
    :class:`cupilot.storage.queue.cards.CardTaken` where another worker has the card.
    """
    take_card(session, device, name)
    values = {
        "kind": kind,
        "queues": list(queues),
        "slots": slots,
        "device": device,
        "version": version,
        "healthy": True,
        "note": None,
        "started_at": func.now(),
        "heartbeat_at": func.now(),
    }
    row = insert(WorkerRow).values(name=name, **values)
    session.execute(row.on_conflict_do_update(index_elements=["name"], set_=values))
    session.execute(delete(Drain).where(Drain.scope == name, Drain.until_restart))
    notify(session)


def beat(session: Session, name: str) -> WorkerRow | None:
    """Report that a worker is alive, and keep its card; None where its row is gone, so that it registers again.

    Raises :class:`cupilot.storage.queue.cards.CardTaken` where another worker has got the card meanwhile.
    """
    alive = update(WorkerRow).where(WorkerRow.name == name).values(heartbeat_at=func.now())
    alive = alive.returning(WorkerRow).execution_options(synchronize_session=False)
    row = session.scalars(alive).one_or_none()
    if row is not None and row.device is not None:
        take_card(session, row.device, name)
    return row


def unclaimed_steps(session: Session, name: str, *, limit: int = 20) -> dict[uuid.UUID, int]:
    """Return how often steps have been sent that the worker has room for and has not taken, of the oldest ones.

    Those that avoid its device are not expected of it.
    """
    worker = session.get(WorkerRow, name)
    if worker is None:
        return {}
    running = select(func.count()).where(Step.state == StepState.RUNNING, Step.lease_owner == name).scalar_subquery()
    sent = (
        select(Step.id, Step.dispatches)
        .where(Step.state == StepState.QUEUED, Step.queue.in_(worker.queues), Step.dispatches > 0)
        .where(running < worker.slots, Step.avoids.is_distinct_from(worker.device.uid if worker.device else ""))
        .order_by(Step.created_at)
        .limit(limit)
    )
    return {step: count for step, count in session.execute(sent)}  # noqa: C416 - rows are no pairs to mypy


def held_steps(session: Session, name: str) -> Sequence[uuid.UUID]:
    """Return the steps that the worker has a lease on."""
    return session.scalars(select(Step.id).where(Step.state == StepState.RUNNING, Step.lease_owner == name)).all()


def mark_unhealthy(session: Session, name: str, note: str) -> None:
    """Mark a worker as unhealthy, with the reason: its slots count no more."""
    session.execute(
        update(WorkerRow)
        .where(WorkerRow.name == name)
        .values(healthy=False, note=note)
        .execution_options(synchronize_session=False)
    )


def forget_worker(session: Session, name: str) -> None:
    """Remove a worker that has stopped in good order; one that was not healthy stays visible for a while."""
    session.execute(delete(WorkerRow).where(WorkerRow.name == name, WorkerRow.healthy))
    release_card(session, name)
    notify(session)


def prune_workers(session: Session) -> None:
    """Remove workers that have been silent for long.

    One with a card stays for :data:`CARD_KEPT`, unless another worker has the card since, or an operator drained it.
    """
    later = aliased(WorkerRow)
    same_card = later.device["uid"].astext == WorkerRow.device["uid"].astext
    replaced = select(later.name).where(same_card, later.heartbeat_at > WorkerRow.heartbeat_at).exists()
    drained = select(Drain.scope).where(Drain.scope == WorkerRow.name).exists()
    missed = (WorkerRow.kind == WorkerKind.GPU) & ~replaced & ~drained
    kept = case((missed, CARD_KEPT), else_=WORKER_KEPT)
    session.execute(delete(WorkerRow).where(WorkerRow.heartbeat_at < func.now() - kept))


def live_workers(session: Session) -> Sequence[WorkerRow]:
    """Return workers that the scheduler can count on."""
    return session.scalars(select(WorkerRow).where(is_live(session))).all()


def anyone_listens(session: Session, queue: str) -> bool:
    """Return whether a live worker takes steps from this queue."""
    return any(queue in worker.queues for worker in live_workers(session))


def anyone_has(session: Session, target: Target) -> bool:
    """Return whether a live worker has a device of this target."""
    found = select(WorkerRow.name).where(is_live(session), WorkerRow.device["target"].astext == target.value)
    return session.scalar(select(found.exists())) is True


def device_of(session: Session, worker: str | None) -> str | None:
    """Return the uid of the device that a worker serves; None of an agent worker, and of one that is not known."""
    return session.scalar(select(WorkerRow.device["uid"].astext).where(WorkerRow.name == worker))


def another_serves(session: Session, queue: str, uid: str) -> bool:
    """Return whether a live worker with another device than ``uid`` takes steps from this queue now."""
    drained = select(Drain.scope).where(Drain.scope == WorkerRow.name).exists()
    others = is_live(session) & (WorkerRow.device["uid"].astext != uid) & WorkerRow.queues.contains([queue])
    return session.scalar(select(select(WorkerRow.name).where(others, ~drained).exists())) is True


def cluster_overview(session: Session) -> ClusterView:
    """Return every worker that is known, and the open steps of every queue."""
    busy = (
        select(Step.lease_owner, func.count().label("busy"))
        .where(Step.state == StepState.RUNNING)
        .group_by(Step.lease_owner)
        .subquery()
    )
    age = func.extract("epoch", func.now() - WorkerRow.heartbeat_at)
    workers = (
        select(WorkerRow, age, case((is_live(session), True), else_=False), func.coalesce(busy.c.busy, 0))
        .outerjoin(busy, busy.c.lease_owner == WorkerRow.name)
        .order_by(WorkerRow.name)
    )
    counts = (
        select(
            Step.queue,
            func.count().filter(Step.state == StepState.QUEUED),
            func.count().filter(AT_A_WORKER),
            func.count().filter(IN_A_BATCH),
        )
        .where(Step.finished_at.is_(None))
        .group_by(Step.queue)
    )
    seen = session.execute(workers).all()
    return ClusterView(
        workers=[WorkerView(row, max(float(seconds), 0.0), live, steps) for row, seconds, live, steps in seen],
        queues={queue: QueueCounts(*numbers) for queue, *numbers in session.execute(counts)},
        scheduler_alive=scheduler_alive(session),
    )


def scheduler_alive(session: Session) -> bool:
    """Return whether a scheduler holds the lock of the one that is in charge, and does its work.

    The lock alone says little: one that hangs, or fails in every round, holds it too.
    """
    locked = text(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND classid = :high AND objid = :low AND objsubid = 1)"
        " AND EXISTS (SELECT FROM scheduler_look WHERE at > now() - :silence)"
    )
    values = {"high": SCHEDULER_LOCK >> 32, "low": SCHEDULER_LOCK & 0xFFFFFFFF, "silence": SCHEDULER_SILENCE}
    return bool(session.execute(locked, values).scalar_one())


def is_live(session: Session) -> ColumnElement[bool]:
    """Return the condition on a worker row: healthy, and heard of within the lease time."""
    silent = timedelta(seconds=settings_of(session).lease_seconds)
    # One from the future was sent before the database's clock was set back.
    return WorkerRow.healthy & WorkerRow.heartbeat_at.between(func.now() - silent, func.now() + silent)
