"""Make, claim, renew and release steps. A claim is a conditional UPDATE; its attempt number is the fencing token.

Finishing a step with its results is the workers' flow; dispatching and reaping are in
:mod:`cupilot.storage.queue.dispatch`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot import tracing
from cupilot.domain.hardware import Device
from cupilot.domain.job import AgentKind
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.storage.db.away import enter_batch
from cupilot.storage.db.engine import notify, settings_of
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import Stale, lock_generation, lock_job, move_job, move_step, record_event
from cupilot.storage.people.quotas import takes_running_slot
from cupilot.storage.queue.cards import renew_card
from cupilot.storage.queue.cluster import another_serves, device_of

AGENTS_QUEUE = "agents"
MODELS_QUEUE = "agents.llm"
"""Of steps that may call a model: only agent workers that have one listen to it."""
UNPLACED = {Target.CPU: "gpu.cpu", Target.CUDA: "gpu.cuda"}
"""Queue of a job's first step. ``gpu.cuda`` is no worker's queue: the scheduler picks a live GPU's class."""


LEFT_TO_OTHERS = timedelta(seconds=1)
"""For so long a step is not sent again that a worker has left to the others of its queue, which may all be busy: the
same worker would have it again at once, and again."""
LONGEST_RETRY = timedelta(seconds=30)
"""No attempt is put off for longer."""


def agents_queue(job: Job) -> str:
    """Return the queue of a job's agent steps."""
    return AGENTS_QUEUE if job.agents is AgentKind.PLAYBOOK else MODELS_QUEUE


def device_queue(where: Target | Device) -> str:
    """Return the queue of a device's class, or of a target whose class is not known yet."""
    return UNPLACED[where] if isinstance(where, Target) else f"gpu.{where.device_class}"


@dataclass(frozen=True)
class Claim:
    """A step that this process may work on, until its lease runs out."""

    step_id: uuid.UUID
    job_id: uuid.UUID
    candidate_id: uuid.UUID | None
    generation_id: uuid.UUID | None
    kind: StepKind
    key: str
    owner: str
    """The worker's name."""
    attempt: int
    """The fencing token: results are accepted only while the step is running at this attempt."""
    payload: Mapping[str, Any]
    trace: str | None = None
    """``traceparent`` of the request that made the job..."""
    cause: str | None = None
    """...and of the step that made this one."""
    since: float = field(default_factory=time.monotonic, compare=False)
    """Time of the claim, by this process's clock."""

    @property
    def busy_seconds(self) -> float:
        """Seconds since then: what is charged for it."""
        return time.monotonic() - self.since


def add_step(
    session: Session,
    job: Job,
    kind: StepKind,
    key: str,
    *,
    queue: str | None = None,
    candidate: Candidate | None = None,
    generation: Generation | None = None,
    payload: Mapping[str, Any] | None = None,
    avoids: str | None = None,
) -> Step:
    """Make a step that waits for the scheduler, for an agent where no ``queue`` is named.

    ``key`` names it within the job; a second one of that name is an error. ``avoids`` is the uid of a device that is to
    have it only while no other one of its class can.
    """
    step = Step(
        id=uuid.uuid4(),
        job_id=job.id,
        generation_id=generation.id if generation else None,
        candidate_id=candidate.id if candidate else None,
        key=key,
        kind=kind,
        queue=queue or agents_queue(job),
        payload=dict(payload or {}),
        max_attempts=settings_of(session).step_attempts,
        avoids=avoids,
        traceparent=tracing.current(),
    )
    session.add(step)
    session.flush()
    record_event(
        session,
        job.id,
        "step.queued",
        candidate_id=step.candidate_id,
        step_id=step.id,
        data={"key": key, "kind": kind.value, "queue": step.queue},
    )
    notify(session)
    return step


def claim_step(
    session: Session,
    step_id: uuid.UUID,
    attempt: int,
    owner: str,
    lease: timedelta,
    *,
    batch: uuid.UUID | None = None,
) -> Claim | None:
    """Claim the step if it is still queued at ``attempt`` and its job goes on; return None where it is not.

    For a worker, or for a ``batch``, which has no card of this service's.

    A worker that has lost its card to another one gets no step that runs there, and one whose device the step avoids
    leaves it to others of its class, as long as there are any.
    """
    job_id = session.scalars(select(Step.job_id).where(Step.id == step_id)).one_or_none()
    if job_id is None:
        return None
    job = lock_job(session, job_id)
    step = session.get_one(Step, step_id, with_for_update={"key_share": True}, populate_existing=True)
    if job.state.final or job.state is JobState.PAUSED or job.cancel_requested_at is not None:
        return None
    if step.state is not StepState.QUEUED or step.attempt != attempt:
        return None
    if job.state is JobState.QUEUED and not takes_running_slot(session, job):
        decline_step(session, step_id, attempt)
        return None
    needs_card = batch is None and step.kind.on_device and job.target is Target.CUDA
    if needs_card and not renew_card(session, owner):
        decline_step(session, step_id, attempt, after=LEFT_TO_OTHERS)
        return None
    if _left_to_others(session, step, owner):
        return None
    values = {
        "attempt": attempt + 1,
        "dispatches": 0,
        "lease_owner": owner,
        "lease_expires_at": func.now() + lease,
        "started_at": func.now(),
        "batch_id": batch,
    }
    move_step(session, step, StepState.RUNNING, attempt=attempt, values=values, data={"owner": owner})
    if job.state is JobState.QUEUED:
        move_job(session, job, JobState.PREPARING)
    if batch is not None:
        enter_batch(session, job.id)
    return claim_of(step, job, owner)


def claim_of(step: Step, job: Job, owner: str) -> Claim:
    """Return the claim of a step that has just begun to run."""
    return Claim(
        step_id=step.id,
        job_id=job.id,
        candidate_id=step.candidate_id,
        generation_id=step.generation_id,
        kind=step.kind,
        key=step.key,
        owner=owner,
        attempt=step.attempt,
        payload=step.payload,
        trace=job.traceparent,
        cause=step.traceparent,
    )


def renew_lease(session: Session, claim: Claim, lease: timedelta) -> bool:
    """Extend the lease; False where the claim is lost."""
    renewed = session.execute(
        update(Step)
        .where(Step.id == claim.step_id, Step.attempt == claim.attempt, Step.state == StepState.RUNNING)
        .values(lease_expires_at=func.now() + lease)
        .returning(Step.id)
        .execution_options(synchronize_session=False)
    )
    return renewed.one_or_none() is not None


def still_wanted(session: Session, claim: Claim) -> bool:
    """Return whether the claim holds and nobody has asked to cancel the job; a read that costs no write."""
    query = (
        select(Step.id)
        .join(Job, Step.job_id == Job.id)
        .where(Step.id == claim.step_id, Step.attempt == claim.attempt, Step.state == StepState.RUNNING)
        .where(Job.cancel_requested_at.is_(None))
    )
    return session.scalars(query).one_or_none() is not None


def lock_claimed(session: Session, claim: Claim) -> tuple[Job, Step]:
    """Return the claimed step and its job, both locked, and its generation; raises :class:`Stale` for a lost claim."""
    job = lock_job(session, claim.job_id)
    if claim.generation_id is not None:
        lock_generation(session, claim.generation_id)
    step = session.get_one(Step, claim.step_id, with_for_update={"key_share": True}, populate_existing=True)
    if step.state is not StepState.RUNNING or step.attempt != claim.attempt:
        raise Stale(f"step {step.key} is not running at attempt {claim.attempt} any more")
    return job, step


def pin(session: Session, claim: Claim, key: str, value: Any) -> Any:
    """Store a value of the claimed step for its further attempts; return it, or that of an earlier attempt.

    Whatever a model call is made from must not change between attempts: the same question is answered from the
    ledger, another one would be paid again. Raises :class:`Stale` where the claim is lost.
    """
    _, step = lock_claimed(session, claim)
    if key not in step.payload:
        step.payload = {**step.payload, key: value}
    return step.payload[key]


def release_step(session: Session, claim: Claim) -> None:
    """Release a step that this process cannot finish, through no fault of the step: no attempt is charged.

    The attempt number goes on counting, because it fences; the limit grows with it.
    """
    _, step = lock_claimed(session, claim)
    values = {"max_attempts": Step.max_attempts + 1}
    move_step(
        session,
        step,
        StepState.QUEUED,
        attempt=claim.attempt,
        busy_seconds=claim.busy_seconds,
        values=values,
        event="step.released",
    )


def return_from_batch(session: Session, step: Step, reason: str) -> None:
    """Queue a locked step again that a batch held, through no fault of the step: no attempt is charged. Its job is
    locked too.
    """
    values = {"max_attempts": Step.max_attempts + 1}
    data = {"batch": str(step.batch_id), "reason": reason}
    move_step(session, step, StepState.QUEUED, attempt=step.attempt, values=values, event="step.released", data=data)


def retry_step(
    session: Session,
    step: Step,
    error: Mapping[str, Any],
    *,
    after: timedelta,
    event: str,
    busy_seconds: float | None = None,
) -> None:
    """Queue a running step again, not before ``after`` has passed; the attempt is charged. The job is locked.

    It is not put off for longer than :data:`LONGEST_RETRY`, and goes to another device than the one where it ran, if
    there is another one: whatever is wrong with a device must not use up all attempts.
    """
    not_before = func.now() + min(after, LONGEST_RETRY)
    values = {"not_before": not_before, "error": dict(error), "avoids": device_of(session, step.lease_owner)}
    move_step(
        session,
        step,
        StepState.QUEUED,
        attempt=step.attempt,
        busy_seconds=busy_seconds,
        values=values,
        event=event,
        data=dict(error),
    )


def decline_step(session: Session, step_id: uuid.UUID, attempt: int, *, after: timedelta = timedelta(0)) -> None:
    """Decline a message without claiming its step: the scheduler may dispatch the step again ``after`` some time."""
    session.execute(
        update(Step)
        .where(Step.id == step_id, Step.attempt == attempt, Step.state == StepState.QUEUED)
        .values(dispatched_at=None, not_before=func.now() + after)
        .execution_options(synchronize_session=False)
    )
    notify(session)


def _left_to_others(session: Session, step: Step, worker: str) -> bool:
    """Decline a locked step that avoids this device, if another one serves its queue; return whether it did."""
    if step.avoids is None or device_of(session, worker) != step.avoids:
        return False
    if not another_serves(session, step.queue, step.avoids):
        return False
    step.dispatched_at, step.not_before = None, func.now() + LEFT_TO_OTHERS
    return True
