"""Submit, read, list and cancel a team's jobs. The workers move a job on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot import tracing
from cupilot.domain.errors import Conflict, InvalidInput, NotFound
from cupilot.domain.job import JobSpec, Priority
from cupilot.domain.states import JobState, StepKind
from cupilot.storage.db.engine import notify
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Job, ProblemRow
from cupilot.storage.db.tables.queue import AT_A_WORKER, Step
from cupilot.storage.db.transitions import lock_job, lock_jobs, move_job, record_event
from cupilot.storage.jobs.endings import end_job, stop_queued_work
from cupilot.storage.jobs.problems import ensure_problem, problem_value
from cupilot.storage.people.quotas import FIRST_STEP, check_queue
from cupilot.storage.queue.cluster import NO_WORKER, NO_WORKER_MESSAGE, anyone_has
from cupilot.storage.queue.steps import add_step, device_queue

KEYS_KEPT = timedelta(days=7)
"""Time for which a repeated idempotency key returns the earlier job; clients repeat for minutes, people for days."""
MAX_LABELS = 16


class IdempotencyMismatch(Conflict):
    """The idempotency key was used before, for another request."""

    code = "idempotency_mismatch"
    status = 422


def submit_job(
    session: Session,
    team_id: uuid.UUID,
    spec: JobSpec,
    *,
    idempotency_key: str | None,
    request_hash: str,
    author: str | None = None,
) -> tuple[Job, bool]:
    """Make a job and its first step; (job, True), or (the earlier job, False) for a repeated idempotency key.

    Raises :class:`IdempotencyMismatch` where the key belongs to another request, and
    :class:`cupilot.domain.quota.QuotaExceeded`. Whether the agents can play the method is checked before
    (:mod:`cupilot.jobs.submission`).
    """
    values = {
        "id": uuid.uuid4(),
        "team_id": team_id,
        "problem_id": ensure_problem(session, team_id, spec.problem),
        "target": spec.target,
        "method": spec.method,
        "agents": spec.agents,
        "budgets": spec.budgets,
        "seed": spec.seed,
        "priority": spec.priority,
        "labels": dict(spec.labels),
        "learning": spec.learning,
        "idempotency_key": idempotency_key,
        "request_hash": request_hash,
        "author": author,
        "traceparent": tracing.current(),
    }
    # A key that another transaction is inserting right now makes this wait for it, then do nothing.
    job = session.scalars(
        insert(Job).values(values).on_conflict_do_nothing(index_elements=["team_id", "idempotency_key"]).returning(Job)
    ).one_or_none()
    if job is None:
        earlier = earlier_job(session, team_id, idempotency_key, request_hash)
        assert earlier is not None
        return earlier, False
    check_queue(session, team_id)
    if not anyone_has(session, spec.target):  # else said by the scheduler, seconds later
        job.reason, job.message = NO_WORKER, NO_WORKER_MESSAGE
    record_event(session, job.id, "job.queued")
    add_step(session, job, StepKind.PREPARE, FIRST_STEP, queue=device_queue(spec.target))
    notify(session)
    return job, True


def earlier_job(session: Session, team_id: uuid.UUID, idempotency_key: str | None, request_hash: str) -> Job | None:
    """Return the job that this key made; None for no key. Raises :class:`IdempotencyMismatch` for another request."""
    if idempotency_key is None:
        return None
    query = scoped(select(Job), team_id).where(Job.idempotency_key == idempotency_key)
    job = session.scalars(query).one_or_none()
    if job is not None and job.request_hash != request_hash:
        raise IdempotencyMismatch(
            "this idempotency key was used for a different request", hint="use a new key for a new request"
        )
    return job


def get_job(session: Session, team_id: uuid.UUID, job_id: uuid.UUID) -> Job:
    """Return one job of the team; raises :class:`NotFound`."""
    job = session.scalars(scoped(select(Job), team_id).where(Job.id == job_id)).one_or_none()
    if job is None:
        raise NotFound(f"no job {job_id}")
    return job


def request_cancel(session: Session, team_id: uuid.UUID, job_id: uuid.UUID) -> Job:
    """Stop a job: at once where nothing of it runs, else as soon as its workers let go. Repeating it is harmless.

    Raises :class:`NotFound`, and :class:`Conflict` where the job has ended otherwise.
    """
    get_job(session, team_id, job_id)
    job = lock_job(session, job_id)
    if job.state in (JobState.CANCELLING, JobState.CANCELLED):
        return job
    if job.state.final:
        raise Conflict(f"the job has ended already: {job.state.value}")
    if job.state is not JobState.QUEUED:
        move_job(session, job, JobState.CANCELLING, reason="cancel_requested")
    stop_queued_work(session, job)
    if not anything_running(session, job):
        end_job(session, job, JobState.CANCELLED, reason="cancel_requested")
    notify(session)
    return job


def request_cancels(session: Session, team_id: uuid.UUID, job_ids: Sequence[uuid.UUID]) -> None:
    """Stop several jobs, as :func:`request_cancel` does each, but those that have ended.

    All are locked before anything of them is: workers lock the jobs of a bundle in the order of their ids, and so does
    this; one job after the other, each with its steps, would deadlock with them.
    """
    for job_id in job_ids:
        get_job(session, team_id, job_id)
    locked = lock_jobs(session, job_ids)
    for job_id in job_ids:
        if not locked[job_id].state.final:
            request_cancel(session, team_id, job_id)


def change_job(
    session: Session,
    team_id: uuid.UUID,
    job_id: uuid.UUID,
    author: str,
    *,
    labels: Mapping[str, str | None],
    priority: Priority | None,
) -> Job:
    """Add, replace or (with None) remove labels, and set the priority of a job that has not ended.

    Raises :class:`NotFound`, :class:`Conflict` for the priority of an ended job, :class:`InvalidInput` for too many.
    """
    get_job(session, team_id, job_id)
    job = lock_job(session, job_id)
    changed = {key: value for key, value in {**job.labels, **labels}.items() if value is not None}
    if len(changed) > MAX_LABELS:
        raise InvalidInput(f"a job has at most {MAX_LABELS} labels", where="body.labels")
    if priority is not None and job.state.final:
        raise Conflict(f"the job has ended already: {job.state.value}")
    if changed != job.labels or priority not in (None, job.priority):
        job.labels, job.priority = changed, priority or job.priority
        data = {"labels": changed, "priority": job.priority.value, "by": author}
        record_event(session, job.id, "job.changed", data=data)
        notify(session)
    return job


def release_keys(session: Session) -> None:
    """Forget idempotency keys that are old enough to be used again."""
    for table in (Job, Experiment):
        session.execute(
            update(table)
            .where(table.idempotency_key.is_not(None), table.created_at < func.now() - KEYS_KEPT)
            .values(idempotency_key=None)
            .execution_options(synchronize_session=False)
        )


def problem_of(session: Session, job: Job) -> ProblemRow:
    """Return the problem that a job works on."""
    return session.get_one(ProblemRow, job.problem_id)


def job_spec(session: Session, job: Job) -> JobSpec:
    """Return the job's specification, as it was submitted."""
    return JobSpec(
        problem=problem_value(problem_of(session, job)),
        target=job.target,
        method=job.method,
        agents=job.agents,
        budgets=job.budgets,
        seed=job.seed,
        priority=job.priority,
        labels=job.labels,
        learning=job.learning,
    )


def first_payload(session: Session, job: Job) -> Mapping[str, Any]:
    """Return the payload of the step that prepares the job's problem."""
    return _first_step(session, job).payload


def extend_first_payload(session: Session, job: Job, **values: str) -> None:
    """Extend the payload of the step that prepares a new job's problem."""
    step = _first_step(session, job)
    step.payload = {**step.payload, **values}
    session.flush()


def measures_one_kernel(session: Session, job: Job) -> bool:
    """Return whether the job measures a kernel that is there and nothing else: its first step then says which."""
    return bool(first_payload(session, job))


def _first_step(session: Session, job: Job) -> Step:
    return session.scalars(select(Step).where(Step.job_id == job.id, Step.kind == StepKind.PREPARE)).one()


def anything_running(session: Session, job: Job) -> bool:
    """Return whether a worker holds a step of the job; what a batch holds is not waited for."""
    query = select(func.count()).where(Step.job_id == job.id, AT_A_WORKER)
    return session.execute(query).scalar_one() > 0
