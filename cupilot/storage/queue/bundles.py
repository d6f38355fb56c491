"""Claim and finish several short steps together: a bundle, in as few statements as one step takes.

A bundle is of one message and one worker; each of its steps keeps its own row, attempt, lease and events, and is
refused by itself where it is stale. Which steps travel together is the scheduler's choice
(:mod:`workers.dispatcher`). Rows are locked in the order job, generation, step, and those of one table by id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, func, select, tuple_, update
from sqlalchemy.orm import Session

from cupilot.domain.states import JobState, StepState
from cupilot.storage.db.tables.jobs import Generation, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_jobs, move_steps
from cupilot.storage.queue.steps import Claim, claim_of, claim_step

BEGUN = (JobState.PREPARING, JobState.EVOLVING)


def claim_together(session: Session, wanted: Mapping[uuid.UUID, int], owner: str, lease: timedelta) -> Sequence[Claim]:
    """Claim those of the ``wanted`` steps (by id, with their attempts) that nobody else has claimed, in that order.

    What :func:`cupilot.storage.queue.steps.claim_step` checks for one is checked for each.
    """
    query = select(Step.id, Step.job_id).where(Step.id.in_(wanted))
    job_of = {step: job for step, job in session.execute(query)}  # noqa: C416 - rows are no pairs to mypy
    jobs = lock_jobs(session, job_of.values())
    steps = _lock_steps(session, job_of)
    plain = [step for step in steps if _is_plain(step, jobs[step.job_id], wanted[step.id])]
    if plain:
        values = {
            "attempt": Step.attempt + 1,
            "dispatches": 0,
            "lease_owner": owner,
            "lease_expires_at": func.now() + lease,
            "started_at": func.now(),
            "batch_id": None,
        }
        move_steps(session, plain, StepState.RUNNING, values=values, data={"owner": owner})
    claims = {step.id: claim_of(step, jobs[step.job_id], owner) for step in plain}
    for step in steps:
        if step.id not in claims and (claim := claim_step(session, step.id, wanted[step.id], owner, lease)):
            claims[step.id] = claim
    return [claims[step_id] for step_id in wanted if step_id in claims]


def lock_claimed_together(session: Session, claims: Sequence[Claim]) -> Mapping[uuid.UUID, tuple[Job, Step]]:
    """Return job and step of each claim that still holds, by the step's id; all locked, with their generations."""
    jobs = lock_jobs(session, [claim.job_id for claim in claims])
    generations = {claim.generation_id for claim in claims if claim.generation_id is not None}
    if generations:
        query = select(Generation).where(Generation.id.in_(generations)).order_by(Generation.id)
        locked = query.with_for_update(key_share=True).execution_options(populate_existing=True)
        session.scalars(locked).all()
    attempts = {claim.step_id: claim.attempt for claim in claims}
    return {
        step.id: (jobs[step.job_id], step)
        for step in _lock_steps(session, attempts)
        if step.state is StepState.RUNNING and step.attempt == attempts[step.id]
    }


def renew_together(session: Session, claims: Sequence[Claim], lease: timedelta) -> None:
    """Extend the leases of those claims that still hold."""
    session.execute(
        update(Step)
        .where(_held(claims))
        .values(lease_expires_at=func.now() + lease)
        .execution_options(synchronize_session=False)
    )


def wanted_of(session: Session, claims: Sequence[Claim]) -> set[uuid.UUID]:
    """Return the steps of those claims that hold and whose jobs nobody has asked to cancel; a read without a write."""
    query = select(Step.id).join(Job, Step.job_id == Job.id).where(_held(claims), Job.cancel_requested_at.is_(None))
    return set(session.scalars(query))


def _held(claims: Sequence[Claim]) -> ColumnElement[bool]:
    attempts = [(claim.step_id, claim.attempt) for claim in claims]
    return tuple_(Step.id, Step.attempt).in_(attempts) & (Step.state == StepState.RUNNING)


def _lock_steps(session: Session, step_ids: Mapping[uuid.UUID, object]) -> Sequence[Step]:
    query = select(Step).where(Step.id.in_(step_ids)).order_by(Step.id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).all()


def _is_plain(step: Step, job: Job, attempt: int) -> bool:
    """Return whether a claim has nothing to check but what both rows say."""
    waits = step.state is StepState.QUEUED and step.attempt == attempt and step.avoids is None
    return waits and not step.kind.on_device and job.state in BEGUN and job.cancel_requested_at is None
