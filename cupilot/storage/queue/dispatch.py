"""Dispatch steps fairly, reap expired leases, dispatch lost steps again; and relay the outbox.

A *dispatched* step has a message on its way; the backlog stays in Postgres, so that priorities, fair share and cancel
act at once. Ending a job or a candidate over a step that is given up is the workers' flow.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.storage.db.engine import settings_of
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.pool import PoolReference
from cupilot.storage.db.tables.queue import AT_A_WORKER, Outbox, Step
from cupilot.storage.db.transitions import not_locked
from cupilot.storage.people.quotas import may_begin
from cupilot.storage.queue.fairness import fair_order, fair_values, published_or_claimed, step_seconds
from cupilot.storage.queue.steps import LONGEST_RETRY

STEP_TOPIC = "step"
BUNDLE_TOPIC = "steps"
POOL_TOPIC = "pool.index"
SENT_KEPT = timedelta(hours=1)
INDEX_PATIENCE = timedelta(seconds=30)
"""Age at which a request to index the pool that did nothing is taken to have failed."""
"""Time for which sent messages are kept, for the analysis of incidents."""
CLOCK_SET_BACK = 20
"""A lease, a sending, or a postponed attempt, that lies this many times its length ahead was written before the
database's clock was set back; it would otherwise be waited for until the clock has caught up."""


@dataclass(frozen=True)
class Load:
    """Load of a queue."""

    running: int = 0
    published: int = 0
    """Dispatched and not claimed yet."""


def loads(session: Session) -> Mapping[str, Load]:
    """Return the load of each queue with running or waiting steps; waiting ones are not counted, they may be many."""
    counted = {queue: Load(*counts) for queue, *counts in session.execute(_load_query())}
    return {queue: counted.get(queue, Load()) for queue in sorted({*counted, *session.scalars(_queues_with_waiting())})}


@cache
def _load_query() -> Select[str, int, int]:
    # What a batch holds takes no slot of a worker.
    running = func.count().filter(AT_A_WORKER)
    published = func.count().filter(Step.state == StepState.QUEUED, Step.dispatched_at.is_not(None))
    return (
        select(Step.queue, running, published)
        .join(Job, Job.id == Step.job_id)
        .where(Step.finished_at.is_(None), published_or_claimed())
        .where(or_(Job.state != JobState.PAUSED, Step.state == StepState.RUNNING))
        .group_by(Step.queue)
    )


@cache
def _queues_with_waiting() -> Select[str]:
    """Return a query that walks from queue to queue along the index, so that the steps between are not read."""
    first = select(func.min(Step.queue).label("queue")).where(_is_unpublished()).cte("queues", recursive=True)
    beyond = select(func.min(Step.queue)).where(_is_unpublished(), Step.queue > first.c.queue).scalar_subquery()
    queues = first.union_all(select(beyond).where(first.c.queue.is_not(None)))
    return select(queues.c.queue).where(queues.c.queue.is_not(None))


def dispatch_ready(
    session: Session, queue: str, free: int, *, bundle: int = 1, slots: int = 1, seconds: float | None = None
) -> int:
    """Hand up to ``free`` of a queue's ready steps to the outbox, fairly between teams and jobs; return how many.

    ``bundle`` is how many may travel in one message; where fewer are ready than are free, they are spread over the
    ``slots``. ``seconds`` is what a step takes, where that is known already.
    """
    seconds = step_seconds(session, queue) if seconds is None else seconds
    steps = session.scalars(_ready_order(), fair_values(queue, seconds, free)).all()
    if len(steps) < free:
        bundle = min(bundle, max(ceil(len(steps) / slots), 1))
    return _publish(session, steps, Step.dispatched_at.is_(None), bundle=bundle)


@cache
def _ready_order() -> Select[Any]:
    before_set_back = func.now() + CLOCK_SET_BACK * LONGEST_RETRY
    due = or_(Step.not_before.is_(None), Step.not_before <= func.now(), Step.not_before > before_set_back)
    return fair_order(_may_run(), _is_unpublished() & due)


def next_steps(session: Session, queue: str, kinds: Sequence[StepKind], count: int) -> Sequence[uuid.UUID]:
    """Return the steps of these kinds that a queue's workers will get next, the nearest first.

    Only looked at: neither locked nor changed, so that whoever asks has no claim to them.
    """
    wanted = Step.kind.in_(kinds)
    sent = (
        select(Step.id)
        .join(Job, Job.id == Step.job_id)
        .where(_may_run(), Step.state == StepState.QUEUED, Step.queue == queue, Step.dispatches > 0, wanted)
        .order_by(Step.dispatched_at)
        .limit(count)
    )
    steps = [*session.scalars(sent)]
    if len(steps) < count:
        waiting = fair_order(_may_run(), _is_unpublished() & wanted)
        values = fair_values(queue, step_seconds(session, queue), count - len(steps))
        steps += [step for step in session.scalars(waiting, values) if step not in steps]
    return steps


def exportable(session: Session, queue: str, count: int, job: uuid.UUID | None) -> Sequence[uuid.UUID]:
    """Return the next ``count`` steps of a queue that a batch may take, fairly between teams and jobs.

    Also those with a message on its way: whoever claims one first has it. Of one ``job`` where it is given.
    """
    ready = (Step.state == StepState.QUEUED) & or_(Step.not_before.is_(None), Step.not_before <= func.now())
    jobs = _may_run() if job is None else _may_run() & (Job.id == job)
    return session.scalars(fair_order(jobs, ready), fair_values(queue, step_seconds(session, queue), count)).all()


def dispatch_again(session: Session, queue: str, after: timedelta, limit: int) -> int:
    """Publish once more what was dispatched long ago and nobody claimed: its message is lost. Return how many."""
    long_ago = or_(Step.dispatched_at < func.now() - after, Step.dispatched_at > func.now() + CLOCK_SET_BACK * after)
    lost = (
        select(Step.id)
        .join(Job, Job.id == Step.job_id)
        .where(Job.state != JobState.PAUSED)
        .where(Step.state == StepState.QUEUED, Step.queue == queue, Step.dispatches > 0, long_ago)
        .order_by(Step.dispatched_at)
        .limit(limit)
    )
    return _publish(session, session.scalars(lost).all(), long_ago)


def anything_unsent(session: Session) -> bool:
    """Return whether messages wait for the broker."""
    return session.execute(select(select(Outbox.id).where(Outbox.sent_at.is_(None)).exists())).scalar_one()


def place_steps(session: Session, unplaced: str, queue: str) -> None:
    """Move steps from where no worker looks to the queue of a live device class."""
    waiting = (Step.state == StepState.QUEUED) & (Step.queue == unplaced) & Step.dispatched_at.is_(None)
    steps = not_locked(select(Step.id).where(waiting))
    session.execute(
        update(Step).where(Step.id == steps.c.id).values(queue=queue).execution_options(synchronize_session=False)
    )


def place_again(session: Session, left: Sequence[str], queue: str) -> None:
    """Move first steps of CUDA jobs from classes of devices that have left to the queue of a live one.

    An experiment's jobs have to run on their class. Messages that were sent there may lie there for ever: the steps are
    sent again, and if a worker comes back and reads the old ones, each is claimed once.
    """
    unbound = select(Job.id).where(Job.id == Step.job_id, Job.target == Target.CUDA, Job.experiment_id.is_(None))
    waiting = (Step.state == StepState.QUEUED) & Step.finished_at.is_(None) & Step.queue.in_(left)
    steps = not_locked(select(Step.id).where(waiting, Step.kind == StepKind.PREPARE, unbound.exists()))
    session.execute(
        update(Step)
        .where(Step.id == steps.c.id)
        .values(queue=queue, dispatched_at=None, dispatches=0)
        .execution_options(synchronize_session=False)
    )


def expired_leases(session: Session, limit: int) -> Sequence[tuple[uuid.UUID, uuid.UUID]]:
    """Return (job id, step id) of running steps whose worker has fallen silent."""
    query = (
        select(Step.job_id, Step.id)
        .where(Step.state == StepState.RUNNING, _expired(session))
        .order_by(Step.lease_expires_at)
        .limit(limit)
    )
    return [(job, step) for job, step in session.execute(query)]


def lock_expired(session: Session, step_id: uuid.UUID) -> Step | None:
    """Return the step, locked, if its lease is still expired; its job must be locked already."""
    query = select(Step).where(Step.id == step_id, Step.state == StepState.RUNNING, _expired(session))
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    return session.scalars(locked).one_or_none()


def _expired(session: Session) -> ColumnElement[bool]:
    """Run out; or further ahead than any lease is given to a worker. A batch has a long one."""
    longest = timedelta(seconds=CLOCK_SET_BACK * settings_of(session).lease_seconds)
    too_far = Step.batch_id.is_(None) & (Step.lease_expires_at > func.now() + longest)
    return or_(Step.lease_expires_at < func.now(), too_far)


def overdue_cancels(session: Session, after: timedelta) -> Sequence[uuid.UUID]:
    """Return jobs whose workers did not let go within ``after``, or have nothing running any more but in batches."""
    running = select(Step.id).where(Step.job_id == Job.id, AT_A_WORKER).exists()
    query = select(Job.id).where(
        Job.state == JobState.CANCELLING,
        Job.finished_at.is_(None),
        or_(Job.cancel_requested_at < func.now() - after, ~running),
    )
    return session.scalars(query).all()


def note_missing_workers(
    session: Session, live_queues: Sequence[str], *, on_device: bool, reason: str, message: str
) -> None:
    """Write on each open job whether it waits for a queue that no live worker serves: of devices, or of agents."""
    kinds = [kind for kind in StepKind if kind.on_device is on_device]
    _note_waiting(session, Step.kind.in_(kinds) & Step.queue.not_in(live_queues), reason, message)


def note_draining(session: Session, drained_queues: Sequence[str]) -> None:
    """Write on each open job whether it waits for a queue of which every live worker is being drained."""
    message = "the workers that it waits for are being drained; it goes on when they take work again"
    _note_waiting(session, Step.queue.in_(drained_queues), "draining", message)


def _note_waiting(session: Session, where: ColumnElement[bool], reason: str, message: str) -> None:
    waits = (Step.state == StepState.QUEUED) & Step.finished_at.is_(None)
    stuck = select(Step.id).where(Step.job_id == Job.id, waits, where).exists()
    open_jobs = Job.finished_at.is_(None) & Job.cancel_requested_at.is_(None)
    changes = (
        (stuck & Job.reason.is_(None), {"reason": reason, "message": message}),
        (~stuck & (Job.reason == reason), {"reason": None, "message": None}),
    )
    for condition, values in changes:
        jobs = not_locked(select(Job.id).where(open_jobs, condition))
        session.execute(
            update(Job).where(Job.id == jobs.c.id).values(values).execution_options(synchronize_session=False)
        )


def request_pool_index(session: Session, queue: str) -> None:
    """Request an agent worker to bring the pool's index up to date."""
    session.add(Outbox(topic=POOL_TOPIC, payload={"queue": queue}))


def pool_index_awaited(session: Session) -> bool:
    """Return whether the last request is unsent, or was sent within :data:`INDEX_PATIENCE` and did nothing so far.

    An index that is away would otherwise be requested again and again, each time in a slot of an agent worker.
    """
    newest = select(Outbox).where(Outbox.topic == POOL_TOPIC).order_by(Outbox.id.desc()).limit(1).subquery()
    served = select(PoolReference.id).where(PoolReference.indexed_at >= newest.c.created_at).exists()
    recent = newest.c.sent_at.between(func.now() - INDEX_PATIENCE, func.now() + INDEX_PATIENCE)
    return session.scalar(select(newest.c.sent_at.is_(None) | (recent & ~served))) is True


def take_messages(session: Session, limit: int) -> Sequence[Outbox]:
    """Return the oldest unsent messages, locked; those that another relay holds are left out."""
    query = select(Outbox).where(Outbox.sent_at.is_(None)).order_by(Outbox.id).limit(limit)
    return session.scalars(query.with_for_update(skip_locked=True)).all()


def mark_sent(session: Session, messages: Sequence[Outbox]) -> None:
    """Mark messages as sent to the broker."""
    _update_messages(session, messages, sent_at=func.now())


def count_attempt(session: Session, message: Outbox) -> None:
    """Count a failed attempt to send a message to the broker."""
    _update_messages(session, [message], attempts=Outbox.attempts + 1)


def prune_sent(session: Session) -> None:
    """Remove messages that were sent long ago."""
    session.execute(delete(Outbox).where(Outbox.sent_at < func.now() - SENT_KEPT))


def _is_unpublished() -> ColumnElement[bool]:
    """Return the condition on a step: it is in Postgres only."""
    return (Step.state == StepState.QUEUED) & Step.dispatched_at.is_(None)


def _may_run() -> ColumnElement[bool]:
    """Return the condition on a job: its steps may be done."""
    return and_(
        Job.finished_at.is_(None),
        Job.cancel_requested_at.is_(None),
        Job.state != JobState.PAUSED,
        or_(Job.state != JobState.QUEUED, may_begin()),
    )


def _publish(session: Session, steps: Sequence[uuid.UUID], *conditions: ColumnElement[bool], bundle: int = 1) -> int:
    """Mark steps as dispatched, and write their messages in the order given; those that are locked wait for the next
    tick, so that nobody who locks many steps, as a cancel does, holds up the others.

    Only first attempts travel together: a step that has cost its worker once is alone when it does so again.
    """
    if not steps:
        return 0
    ready = not_locked(select(Step.id).where(Step.id.in_(steps), Step.state == StepState.QUEUED, *conditions))
    rows = session.execute(
        update(Step)
        .where(Step.id == ready.c.id, Job.id == Step.job_id)
        .values(dispatched_at=func.clock_timestamp(), dispatches=Step.dispatches + 1)
        .returning(Step.id, Step.attempt, Step.queue, Job.traceparent)
        .execution_options(synchronize_session=False)
    )
    rank = {step: position for position, step in enumerate(steps)}
    ordered = sorted(rows, key=lambda row: rank[row[0]])
    together = [row for row in ordered if bundle > 1 and row[1] == 0]
    messages = [
        {"topic": STEP_TOPIC, "payload": {"step": str(step), "attempt": attempt, "queue": queue, "trace": trace}}
        for step, attempt, queue, trace in ordered
        if bundle <= 1 or attempt > 0
    ]
    for first in range(0, len(together), bundle):
        steps_of = {str(step): attempt for step, attempt, *_ in together[first : first + bundle]}
        messages.append({"topic": BUNDLE_TOPIC, "payload": {"steps": steps_of, "queue": together[first][2]}})
    if messages:
        session.execute(insert(Outbox), messages)
    return len(ordered)


def _update_messages(session: Session, messages: Sequence[Outbox], **values: Any) -> None:
    ids = [message.id for message in messages]
    session.execute(
        update(Outbox).where(Outbox.id.in_(ids)).values(**values).execution_options(synchronize_session=False)
    )
