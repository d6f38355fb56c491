"""Change states, here only: the allowed edges, guarded updates, one event a transition.

Says that a job may go from ``preparing`` to ``evolving``; why it does is the workers' business. Whoever changes more
than one row locks in the order job, generation, step (:func:`lock_job` first): that is what keeps finishing,
cancelling and reaping from deadlocking. Locks are ``NO KEY UPDATE``, so that rows which refer to a locked row, such as
events, can still be inserted by others.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import CTE, ColumnElement, Select, case, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict
from cupilot.domain.evolution.fitness import speedup_low
from cupilot.domain.states import BatchState, CandidateState, GenerationState, JobState, StepState
from cupilot.storage.db.away import leave_batch
from cupilot.storage.db.changes import note
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.batches import Batch
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Event, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.usage import charge_gpu

_ENDS = frozenset({JobState.CANCELLED, JobState.FAILED, JobState.BUDGET_EXHAUSTED})
JOB_EDGES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.PREPARING, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED}),
    JobState.PREPARING: _ENDS | {JobState.EVOLVING, JobState.PAUSED, JobState.CANCELLING},
    JobState.EVOLVING: _ENDS | {JobState.SUCCEEDED, JobState.PAUSED, JobState.CANCELLING},
    # Back to where it was, or to an end that what still ran has come to.
    JobState.PAUSED: _ENDS
    | {JobState.QUEUED, JobState.PREPARING, JobState.EVOLVING, JobState.SUCCEEDED, JobState.CANCELLING},
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
}
GENERATION_EDGES: Mapping[GenerationState, frozenset[GenerationState]] = {
    GenerationState.RUNNING: frozenset({GenerationState.FINISHED}),
}
CANDIDATE_EDGES: Mapping[CandidateState, frozenset[CandidateState]] = {
    CandidateState.ACTIVE: frozenset(
        {CandidateState.EVALUATED, CandidateState.DUPLICATE, CandidateState.FAILED, CandidateState.CANCELLED}
    ),
}
STEP_EDGES: Mapping[StepState, frozenset[StepState]] = {
    StepState.QUEUED: frozenset({StepState.RUNNING, StepState.CANCELLED}),
    StepState.RUNNING: frozenset({StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED, StepState.QUEUED}),
}

BATCH_EDGES: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.EXPORTING: frozenset({BatchState.OPEN, BatchState.EMPTY, BatchState.CANCELLED}),
    BatchState.OPEN: frozenset({BatchState.FINISHED, BatchState.CANCELLED, BatchState.EXPIRED}),
}


class IllegalTransition(Conflict):
    """No such edge: a bug in the caller, or a request that comes too late."""

    code = "illegal_transition"


class Stale(Conflict):
    """The row is no longer in the state, or at the attempt, that the caller knew."""

    code = "stale"


def lock_job(session: Session, job_id: uuid.UUID) -> Job:
    """Return the job's row, locked until the transaction ends."""
    return session.get_one(Job, job_id, with_for_update={"key_share": True}, populate_existing=True)


def lock_jobs(session: Session, job_ids: Iterable[uuid.UUID]) -> Mapping[uuid.UUID, Job]:
    """Return the rows of several jobs by id, locked in the order of their ids, so that no two who do this deadlock."""
    query = select(Job).where(Job.id.in_({*job_ids})).order_by(Job.id).with_for_update(key_share=True)
    return {job.id: job for job in session.scalars(query.execution_options(populate_existing=True))}


def not_locked(rows: Select[uuid.UUID]) -> CTE:
    """Return those of the rows that no other transaction has locked, locked: whoever updates them waits for nobody.

    For what the scheduler does again at its next tick.
    """
    return rows.with_for_update(key_share=True, skip_locked=True).cte("not_locked")


def lock_generation(session: Session, generation_id: uuid.UUID) -> Generation:
    """Return the generation's row, locked; its job must be locked already."""
    return session.get_one(Generation, generation_id, with_for_update={"key_share": True}, populate_existing=True)


def move_job(
    session: Session, job: Job, to: JobState, *, reason: str | None = None, message: str | None = None
) -> None:
    """Change a locked job's state; ``reason`` and ``message`` replace the former ones."""
    values: dict[str, Any] = {"reason": reason, "message": message}
    if to is JobState.PREPARING:
        values["started_at"] = func.coalesce(Job.started_at, func.now())
    if to is JobState.PAUSED:
        values["paused_at"] = func.now()
    if job.state is JobState.PAUSED:
        begun = func.coalesce(_seconds(func.now() - func.greatest(Job.paused_at, Job.started_at)), 0)
        # Where steps of it still lie in a batch, they did so before it was paused: that span holds this one.
        pause = case((Job.started_at.is_not(None) & Job.batched_at.is_(None), begun), else_=0)
        values |= {"paused_at": None, "paused_seconds": Job.paused_seconds + pause}
    if to is JobState.CANCELLING:
        values["cancel_requested_at"] = func.coalesce(Job.cancel_requested_at, func.now())
    if to.final:
        values["finished_at"] = func.now()
    note(session, "job.state", job.state, to)
    _move(session, job, to, JOB_EDGES, values)
    data = {name: value for name, value in (("reason", reason), ("message", message)) if value}
    record_event(session, job.id, f"job.{to.value}", data=data)


def move_generation(session: Session, generation: Generation, to: GenerationState) -> None:
    """Change a locked generation's state; one that is finished waits for nobody, also where its job was ended early."""
    values = {"finished_at": func.now(), "pending": 0} if to is GenerationState.FINISHED else {}
    _move(session, generation, to, GENERATION_EDGES, values)
    record_event(session, generation.job_id, f"generation.{to.value}", data={"number": generation.number})


def move_candidate(session: Session, candidate: Candidate, to: CandidateState, *, reason: str | None = None) -> None:
    """Change the state of a candidate of a locked job."""
    values = {"reason": reason, "finished_at": func.now()}
    _move(session, candidate, to, CANDIDATE_EDGES, values)
    data: dict[str, Any] = {"ordinal": candidate.ordinal}
    if reason:
        data["reason"] = reason
    if candidate.verdict is not None:
        measured = session.get(EvaluationRow, candidate.evaluation_id) if candidate.evaluation_id else None
        low = None if measured is None else speedup_low(measured.body)
        data |= {"verdict": candidate.verdict.value, "speedup": candidate.speedup, "speedup_low": low}
    record_event(session, candidate.job_id, f"candidate.{to.value}", candidate_id=candidate.id, data=data)


def move_step(
    session: Session,
    step: Step,
    to: StepState,
    *,
    attempt: int,
    busy_seconds: float | None = None,
    values: Mapping[str, Any] | None = None,
    event: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Change the state of a step of a locked job, provided that it is still at ``attempt`` (the fencing token).

    ``busy_seconds`` is how long the worker had the step, by the worker's monotonic clock. None for a worker that cannot
    be asked: the database's clock counts then, up to the end of the lease, and 0 for a batch, which held the step
    without a device. ``values`` are further columns; ``event`` names the event where the state's name does not say
    enough.
    """
    changes: dict[str, Any] = dict(values or {})
    was_running = step.state is StepState.RUNNING
    was_batched = was_running and step.batch_id is not None
    if was_batched and busy_seconds is None:
        busy_seconds = 0.0
    if was_running:
        until = func.least(func.clock_timestamp(), Step.lease_expires_at)
        changes["busy_seconds"] = Step.busy_seconds + (
            _seconds(until - Step.started_at) if busy_seconds is None else busy_seconds
        )
    before = step.busy_seconds
    if to is StepState.QUEUED:
        changes |= {"dispatched_at": None}
    if to is not StepState.RUNNING:
        changes |= {"lease_owner": None, "lease_expires_at": None}
        changes |= {} if to is StepState.QUEUED else {"finished_at": func.now()}
    _move(session, step, to, STEP_EDGES, changes, Step.attempt == attempt)
    if was_running and step.kind.on_device:
        charge_gpu(session, step.job_id, step.busy_seconds - before)
    if was_batched:
        leave_batch(session, step.job_id)
    details = {"key": step.key, "kind": step.kind.value, "attempt": step.attempt, **(data or {})}
    record_event(
        session,
        step.job_id,
        event or f"step.{to.value}",
        candidate_id=step.candidate_id,
        step_id=step.id,
        data=details,
    )
    if to is not StepState.RUNNING:
        notify(session)  # a slot is free


def move_steps(
    session: Session,
    steps: Sequence[Step],
    to: StepState,
    *,
    values: Mapping[str, Any] | None = None,
    busy_seconds: Mapping[uuid.UUID, float] | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Change the state of several locked steps, of locked jobs, as :func:`move_step` does; in as few statements as for
    one.

    All are in the same state, none is held by a batch, and each ends or begins to run. ``busy_seconds`` is by step.
    """
    (current,) = {step.state for step in steps}
    if to not in STEP_EDGES.get(current, frozenset()) or to is StepState.QUEUED:
        raise IllegalTransition(f"steps cannot go from {current.value} to {to.value} together")
    changes: dict[str, Any] = dict(values or {})
    if to is not StepState.RUNNING:
        changes |= {"lease_owner": None, "lease_expires_at": None, "finished_at": func.now()}
    busy = busy_seconds or {}
    if busy:
        changes["busy_seconds"] = Step.busy_seconds + case(busy, value=Step.id, else_=0.0)
    session.flush()
    still = tuple_(Step.id, Step.attempt).in_([(step.id, step.attempt) for step in steps])
    moved = session.scalars(
        update(Step)
        .where(still, Step.state == current)
        .values(state=to, **changes)
        .returning(Step)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).all()
    if len(moved) != len(steps):
        raise Stale(f"some of {len(steps)} steps are no longer {current.value}, or are at another attempt")
    charged: dict[uuid.UUID, float] = defaultdict(float)
    for step in steps:
        if current is StepState.RUNNING and step.kind.on_device:
            charged[step.job_id] += busy.get(step.id, 0.0)
    for job_id, seconds in charged.items():
        charge_gpu(session, job_id, seconds)
    events = [
        {
            "job_id": step.job_id,
            "kind": f"step.{to.value}",
            "candidate_id": step.candidate_id,
            "step_id": step.id,
            "data": {"key": step.key, "kind": step.kind.value, "attempt": step.attempt, **(data or {})},
        }
        for step in steps
    ]
    session.execute(insert(Event), events)
    if to is not StepState.RUNNING:
        notify(session)


def move_batch(session: Session, batch: Batch, to: BatchState, *, values: Mapping[str, Any] | None = None) -> None:
    """Change a locked batch's state, with further columns; its steps have states of their own."""
    note(session, "batch.state", batch.state, to)
    _move(session, batch, to, BATCH_EDGES, dict(values or {}))


def record_event(
    session: Session,
    job_id: uuid.UUID,
    kind: str,
    *,
    candidate_id: uuid.UUID | None = None,
    step_id: uuid.UUID | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append to the job's history."""
    session.add(Event(job_id=job_id, kind=kind, candidate_id=candidate_id, step_id=step_id, data=dict(data or {})))


def _seconds(span: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the seconds of a span; 0 where the database's clock was set back meanwhile."""
    return func.greatest(func.extract("epoch", span), 0)


def _move(
    session: Session,
    row: Any,
    to: StrEnum,
    edges: Mapping[Any, frozenset[Any]],
    values: Mapping[str, Any],
    *conditions: ColumnElement[bool],
) -> None:
    table, current = type(row), row.state
    noun = table.__name__.lower()
    if to not in edges.get(current, frozenset()):
        raise IllegalTransition(f"a {noun} cannot go from {current.value} to {to.value}")
    session.flush()
    moved = session.scalars(
        update(table)
        .where(table.id == row.id, table.state == current, *conditions)
        .values(state=to, **values)
        .returning(table)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).one_or_none()
    if moved is None:
        raise Stale(f"the {noun} is no longer {current.value}, or is at another attempt")
