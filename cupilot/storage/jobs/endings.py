"""End a job from outside its flow: cancelled, out of budget, failed. Its open work is closed with it.

The job must be locked. Results that arrive later are refused, because their steps are no longer running.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from cupilot.domain.states import CandidateState, GenerationState, JobState, StepState
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.jobs import Candidate, Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, move_candidate, move_generation, move_job, move_step
from cupilot.storage.models.calls import lose_open_calls


def stop_queued_work(session: Session, job: Job) -> None:
    """Cancel every step of the job that has not begun."""
    _cancel_steps(session, job, (StepState.QUEUED,))


def end_job(
    session: Session, job: Job, state: JobState, *, reason: str | None = None, message: str | None = None
) -> None:
    """Put the job into a final state; its open steps and candidates are cancelled, its best kernel is kept."""
    generations = _open_generations(session, job)
    _cancel_steps(session, job, (StepState.QUEUED, StepState.RUNNING))
    active = select(Candidate).where(Candidate.job_id == job.id, Candidate.state == CandidateState.ACTIVE)
    for candidate in session.scalars(active.order_by(Candidate.ordinal)).all():
        move_candidate(session, candidate, CandidateState.CANCELLED, reason=state.value)
    for generation in generations:
        move_generation(session, generation, GenerationState.FINISHED)
    move_job(session, job, state, reason=reason, message=message)
    notify(session)


def _open_generations(session: Session, job: Job) -> list[Generation]:
    query = select(Generation.id).where(Generation.job_id == job.id, Generation.state == GenerationState.RUNNING)
    return [lock_generation(session, key) for key in session.scalars(query.order_by(Generation.number)).all()]


def _cancel_steps(session: Session, job: Job, states: tuple[StepState, ...]) -> None:
    query = select(Step).where(Step.job_id == job.id, Step.state.in_(states)).order_by(Step.id)
    locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    steps = session.scalars(locked).all()
    lose_open_calls(session, job, [step.id for step in steps if step.state is StepState.RUNNING])
    for step in steps:
        move_step(session, step, StepState.CANCELLED, attempt=step.attempt)
