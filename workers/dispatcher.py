"""Decides which steps get a message now: as many a queue as its workers' free slots can take, fairly between teams."""

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

    One transaction a queue: whoever locks steps does so in the order of their ids.
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
    for queue, there in load.items():
        room = slots.get(queue, 0) - there.running
        free = room + 1 - there.published
        with database.transaction() as session:
            if queue in slots and free > 0:
                dispatch_ready(session, queue, free)
            if there.published and room > 0 and not broker_behind:
                dispatch_again(session, queue, redispatch, BATCH)


def note_missing(database: Database) -> None:
    """Let a job say so that waits for a worker which does not exist, or which is drained, or for its team's quota."""
    with database.transaction() as session:
        drained, workers = drained_scopes(session), live_workers(session)
        there = _served(workers)
        taking = _served([] if SERVICE in drained else [worker for worker in workers if worker.name not in drained])
        reason, message = "no_worker_for_target", "no live GPU worker serves this job's target"
        note_missing_workers(session, there, on_device=True, reason=reason, message=message)
        reason, message = "no_agent_worker", "no live agent worker"
        note_missing_workers(session, there, on_device=False, reason=reason, message=message)
        note_draining(session, sorted(set(there) - set(taking)))
        note_held_back(session)


def request_index(database: Database) -> None:
    """Have the pool's index brought up to date, where there is something to index and somebody to do it."""
    with database.transaction() as session:
        if AGENTS_QUEUE in _slots(live_workers(session)) and anything_unindexed(session):
            request_pool_index(session, AGENTS_QUEUE)


def _served(workers: Sequence[WorkerRow]) -> list[str]:
    """Queues whose steps these workers take, also that of CUDA jobs which have no device class yet."""
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
    """Send jobs that have no device class yet, or whose class has ``left``, to the one with the least work a slot."""
    devices = [worker.device for worker in workers if worker.device]
    queues = sorted({device_queue(device) for device in devices if device.target is Target.CUDA})
    if queues:
        chosen = min(queues, key=lambda queue: _work(load, queue) / slots[queue])
        place_steps(session, UNPLACED[Target.CUDA], chosen)
        place_again(session, left, chosen)


def _work(load: Mapping[str, Load], queue: str) -> int:
    there = load.get(queue, Load())
    return there.running + there.published
