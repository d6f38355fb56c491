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
from cupilot.storage.queue.cluster import NO_WORKER, NO_WORKER_MESSAGE, live_workers
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
    pool_index_awaited,
    request_pool_index,
)
from cupilot.storage.queue.drains import SERVICE, drained_scopes
from cupilot.storage.queue.fairness import step_seconds
from cupilot.storage.queue.steps import AGENTS_QUEUE, MODELS_QUEUE, UNPLACED, device_queue

BATCH = 100


AHEAD_SECONDS = 0.1
"""Work of so long waits at the workers beyond what they do, so that none is idle until the next tick."""
LARGEST_BUNDLE = 32
MOST_AHEAD = 4
"""Bundles of a slot that wait at the workers at most, however short their steps."""


def dispatch(database: Database, redispatch: timedelta, bundle_seconds: float = 0.0) -> None:
    """Fill the free slots of every queue, and a little more, so that no slot waits for the next tick.

    What models are asked is sent to free slots only, and of a worker's one is left to templates and the pool's index:
    slow answers would hold all of them.

    Where the steps of :data:`AGENTS_QUEUE` are short on average, a slot takes a bundle of as many as take
    ``bundle_seconds``. One transaction per queue.
    """
    with database.reading() as session:
        drained = drained_scopes(session)
        if SERVICE in drained:
            return
        live = live_workers(session)
        workers = [worker for worker in live if worker.name not in drained]
        slots, load = _slots(workers), loads(session)
        broker_behind = anything_unsent(session)
    left = [queue for queue in load if queue not in (AGENTS_QUEUE, MODELS_QUEUE, *_served(live))]
    if left or UNPLACED[Target.CUDA] in load:
        with database.transaction() as session:
            _place_cuda(session, workers, slots, load, left)
            load = loads(session)
    for queue, queued in load.items():
        with database.transaction() as session:
            seconds = step_seconds(session, queue)
            bundle = _bundle(queue, seconds, bundle_seconds)
            room = slots.get(queue, 0) * bundle - queued.running
            ahead = 0 if queue == MODELS_QUEUE else _ahead(slots.get(queue, 0), bundle, seconds)
            free = room + ahead - queued.published
            if queue in slots and free > 0:
                dispatch_ready(session, queue, free, bundle=bundle, slots=slots[queue], seconds=seconds)
            if queued.published and room > 0 and not broker_behind:
                dispatch_again(session, queue, redispatch, BATCH)


def note_missing(database: Database) -> None:
    """Record why jobs wait: for a worker that does not exist or is drained, or for their team's quota."""
    with database.transaction() as session:
        drained, workers = drained_scopes(session), live_workers(session)
        served = _served(workers)
        taking = _served([] if SERVICE in drained else [worker for worker in workers if worker.name not in drained])
        note_missing_workers(session, served, on_device=True, reason=NO_WORKER, message=NO_WORKER_MESSAGE)
        reason, message = "no_agent_worker", "no live agent worker"
        note_missing_workers(session, served, on_device=False, reason=reason, message=message)
        note_draining(session, sorted(set(served) - set(taking)))
        note_held_back(session)


def request_index(database: Database) -> None:
    """Queue an update of the pool's index, where there is something to index and an agent worker to do it."""
    with database.transaction() as session:
        served = AGENTS_QUEUE in _slots(live_workers(session))
        if served and anything_unindexed(session) and not pool_index_awaited(session):
            request_pool_index(session, AGENTS_QUEUE)


def _bundle(queue: str, seconds: float, bundle_seconds: float) -> int:
    """Return how many steps of a queue may travel together: only those that neither hold a device nor call a model.

    The others may take minutes, which steps of other teams in the same bundle would wait for.
    """
    if queue != AGENTS_QUEUE:
        return 1
    return max(min(int(bundle_seconds / max(seconds, 1e-9)), LARGEST_BUNDLE), 1)


def _ahead(slots: int, bundle: int, seconds: float) -> int:
    """Return how many steps wait at the workers beyond what their slots take: at least a bundle."""
    in_time = int(slots * AHEAD_SECONDS / max(seconds, 1e-9))
    return min(max(in_time, bundle), max(MOST_AHEAD * slots * bundle, 1)) if bundle > 1 else max(min(in_time, slots), 1)


def _served(workers: Sequence[WorkerRow]) -> list[str]:
    """Return the queues that these workers serve, also that of CUDA jobs which have no device class yet."""
    devices = [worker.device for worker in workers if worker.device]
    unplaced = {UNPLACED[device.target] for device in devices}
    return sorted({*_slots(workers), *unplaced})


def _slots(workers: Sequence[WorkerRow]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for worker in workers:
        for queue in worker.queues:
            slots[queue] = slots.get(queue, 0) + _slots_for(worker, queue)
    return slots


def _slots_for(worker: WorkerRow, queue: str) -> int:
    """Return a worker's slots for a queue: all, but for one that what models are asked leaves to templates."""
    left_to_templates = queue == MODELS_QUEUE and AGENTS_QUEUE in worker.queues and worker.slots > 1
    return worker.slots - left_to_templates


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
