"""Decide which steps get a message now: as many per queue as its workers have free slots, fairly between teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy.orm import Session

from cupilot.domain.problem import Target
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import WorkerRow
from cupilot.storage.people.quotas import note_held_back
from cupilot.storage.pool.rows import anything_unindexed
from cupilot.storage.queue.cluster import live_workers
from cupilot.storage.queue.dispatch import (
    Load,
    anything_unsent,
    dispatch_again,
    dispatch_ready,
    loads,
    note_draining,
    note_missing_workers,
    place_again,
    place_steps,
    request_pool_index,
)
from cupilot.storage.queue.drains import SERVICE, drained_scopes
from cupilot.storage.queue.steps import AGENTS_QUEUE, MODELS_QUEUE, UNPLACED, device_queue

BATCH = 100


def dispatch(database: Database, redispatch: timedelta) -> None:
    """Fill the free slots of every queue, and one more, so that no slot waits for the next tick.

    One transaction per queue, because steps are locked in the order of their ids.
    """
    with database.transaction() as session:
        drained = drained_scopes(session)
        if SERVICE in drained:
            return
        live = live_workers(session)
        workers = [worker for worker in live if worker.name not in drained]
        slots, load = _slots(workers), loads(session)
        broker_behind = anything_unsent(session)
        left = [queue for queue in load if queue not in (AGENTS_QUEUE, MODELS_QUEUE, *_served(live))]
        if left or UNPLACED[Target.CUDA] in load:
            _place_cuda(session, workers, slots, load, left)
            load = loads(session)
    for queue, queued in load.items():
        room = slots.get(queue, 0) - queued.running
        free = room + 1 - queued.published
        with database.transaction() as session:
            if queue in slots and free > 0:
                dispatch_ready(session, queue, free)
            if queued.published and room > 0 and not broker_behind:
                dispatch_again(session, queue, redispatch, BATCH)


def note_missing(database: Database) -> None:
    """Record why jobs wait: for a worker that does not exist or is drained, or for their team's quota."""
    with database.transaction() as session:
        drained, workers = drained_scopes(session), live_workers(session)
        served = _served(workers)
        taking = _served([] if SERVICE in drained else [worker for worker in workers if worker.name not in drained])
        reason = "no_worker_for_target"
        message = "no live GPU worker serves this job's target; start one, or see 'cupilot batch export --help'"
        note_missing_workers(session, served, on_device=True, reason=reason, message=message)
        reason, message = "no_agent_worker", "no live agent worker"
        note_missing_workers(session, served, on_device=False, reason=reason, message=message)
        note_draining(session, sorted(set(served) - set(taking)))
        note_held_back(session)


def request_index(database: Database) -> None:
    """Queue an update of the pool's index, where there is something to index and an agent worker to do it."""
    with database.transaction() as session:
        if AGENTS_QUEUE in _slots(live_workers(session)) and anything_unindexed(session):
            request_pool_index(session, AGENTS_QUEUE)


def _served(workers: Sequence[WorkerRow]) -> list[str]:
    """Return the queues that these workers serve, also that of CUDA jobs which have no device class yet."""
    devices = [worker.device for worker in workers if worker.device]
    unplaced = {UNPLACED[device.target] for device in devices}
    return sorted({*_slots(workers), *unplaced})


def _slots(workers: Sequence[WorkerRow]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for worker in workers:
        for queue in worker.queues:
            slots[queue] = slots.get(queue, 0) + worker.slots
    return slots


def _place_cuda(
    session: Session,
    workers: Sequence[WorkerRow],
    slots: Mapping[str, int],
    load: Mapping[str, Load],
    left: Sequence[str],
) -> None:
    """Place steps without a device class, or whose class has ``left``, in the queue with the least work per slot."""
    devices = [worker.device for worker in workers if worker.device]
    queues = sorted({device_queue(device) for device in devices if device.target is Target.CUDA})
    if queues:
        chosen = min(queues, key=lambda queue: _work(load, queue) / slots[queue])
        place_steps(session, UNPLACED[Target.CUDA], chosen)
        place_again(session, left, chosen)


def _work(load: Mapping[str, Load], queue: str) -> int:
    queued = load.get(queue, Load())
    return queued.running + queued.published
