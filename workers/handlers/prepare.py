"""Step ``prepare``: the judge checks the reference, times the baseline and places the problem on the roofline."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind, PreparationResult
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState
from cupilot.jobs import importing
from cupilot.jobs.flow import begin_generation, begin_import, begin_remeasurement
from cupilot.jobs.remeasuring import PAYLOAD
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import move_job
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.evolving import set_preparation
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.queue.steps import Claim
from workers.tools import Infrastructure, Tools


@dataclass(frozen=True)
class Prepared:
    """What came of it."""

    result: PreparationResult
    seconds: float


def load(session: Session, claim: Claim) -> Problem:
    """The problem."""
    return job_spec(session, session.get_one(Job, claim.job_id)).problem


def work(problem: Problem, tools: Tools, cancelled: Callable[[], bool]) -> Prepared:
    """Have the judge prepare it."""
    started = time.monotonic()
    result = tools.judge().prepare(problem, timeout=tools.settings.prepare_timeout_seconds, cancelled=cancelled)
    if result.failure is not None and result.failure.kind is FailureKind.INFRASTRUCTURE:
        raise Infrastructure(result.failure.message)
    return Prepared(result, time.monotonic() - started)


def store(session: Session, job: Job, step: Step, prepared: Prepared) -> None:
    """Begin the first generation, or end a job whose reference cannot be used."""
    if prepared.result.preparation is None:
        assert prepared.result.failure is not None
        message = prepared.result.failure.message
        end_job(session, job, JobState.FAILED, reason=FailureKind.INVALID_PROBLEM.value, message=message)
        return
    set_preparation(session, job, prepared.result.preparation)
    if job.state is JobState.PREPARING:  # a paused job is resumed as what it has come to
        move_job(session, job, JobState.EVOLVING)
    winner, file = step.payload.get(PAYLOAD), step.payload.get(importing.PAYLOAD)
    if file is not None:
        begin_import(session, job, file)
    elif winner is not None:
        begin_remeasurement(session, job, uuid.UUID(winner))
    else:
        begin_generation(session, job, 0, [])
