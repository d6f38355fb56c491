"""Step ``prepare``: the judge checks the reference, times the baseline and places the problem on the roofline."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind, PreparationResult
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState
from cupilot.jobs import champions, importing, remeasuring
from cupilot.jobs.flow import begin_generation, begin_import, begin_remeasurement
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import move_job
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.evolving import set_preparation
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.queue.steps import Claim
from workers.handlers.handler import Handler
from workers.tools import Tools


def load(session: Session, claim: Claim) -> Problem:
    """Read the problem."""
    return job_spec(session, session.get_one(Job, claim.job_id)).problem


def work(problem: Problem, tools: Tools, cancelled: Callable[[], bool]) -> PreparationResult:
    """Prepare the problem with the judge."""
    return tools.step_judge(cancelled).prepare(problem)


def store(session: Session, job: Job, step: Step, result: PreparationResult) -> None:
    """Begin the first generation, or end a job whose reference cannot be used."""
    if result.preparation is None:
        assert result.failure is not None
        short = result.failure.kind is FailureKind.OUT_OF_MEMORY
        reason = FailureKind.OUT_OF_MEMORY if short else FailureKind.INVALID_PROBLEM
        end_job(session, job, JobState.FAILED, reason=reason.value, message=result.failure.message)
        return
    set_preparation(session, job, result.preparation)
    if job.state is JobState.PREPARING:  # a paused job is resumed as what it has come to
        move_job(session, job, JobState.EVOLVING)
    winner, file = step.payload.get(remeasuring.PAYLOAD), step.payload.get(importing.PAYLOAD)
    if file is not None:
        begin_import(session, job, file)
    elif winner is not None:
        begin_remeasurement(session, job, uuid.UUID(winner))
    else:
        begin_generation(session, job, 0, [], only_injected=champions.PAYLOAD in step.payload)


PREPARE = Handler(load, work, store)
