"""End expired leases, overdue cancels, and jobs beyond their wall time or quota."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.states import JobState, StepState
from cupilot.jobs.attribution import end_attribution
from cupilot.jobs.budget import Exhausted
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, lock_job, move_step
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.wall_time import over_time
from cupilot.storage.models.calls import lose_open_calls
from cupilot.storage.people.quotas import BEGUN, jobs_without_gpu
from cupilot.storage.queue.dispatch import expired_leases, lock_expired, overdue_cancels
from cupilot.storage.queue.steps import return_from_batch
from workers.steps import fail_attempt

logger = logging.getLogger(__name__)

BATCH = 100


def reap(database: Database) -> None:
    """Retry steps whose lease has expired, or fail them after the last attempt."""
    with database.transaction() as session:
        expired = expired_leases(session, BATCH)
    for job_id, step_id in expired:
        try:
            _reap_one(database, job_id, step_id)
        except Unavailable:
            raise
        except Exception:  # one step that cannot be handled must not block the others
            logger.exception("reaping failed job=%s step=%s", job_id, step_id)


def end_cancelled(database: Database, patience: timedelta) -> None:
    """End jobs being cancelled whose workers have not released their steps within ``patience``."""
    with database.transaction() as session:
        overdue = overdue_cancels(session, patience)
    for job_id in overdue:
        with database.transaction() as session:
            job = lock_job(session, job_id)
            if job.state is JobState.CANCELLING:
                end_job(session, job, JobState.CANCELLED, reason="cancel_requested")
    _log(overdue, JobState.CANCELLED)


def end_overtime(database: Database) -> None:
    """End jobs whose wall time is used up; their running steps become stale, their best kernel is kept."""
    with database.transaction() as session:
        late = over_time(session)
    for job_id in late:
        with database.transaction() as session:
            job = lock_job(session, job_id)
            if end_attribution(session, job):
                continue
            if job.state in (JobState.PREPARING, JobState.EVOLVING):
                reached = Exhausted.WALL
                end_job(session, job, JobState.BUDGET_EXHAUSTED, reason=reached.value, message=reached.message)
    _log(late, JobState.BUDGET_EXHAUSTED)


def end_over_quota(database: Database) -> None:
    """End begun jobs of teams whose device seconds of the period are used up; their best kernel is kept."""
    with database.transaction() as session:
        over = jobs_without_gpu(session)
    for job_id in over:
        with database.transaction() as session:
            job = lock_job(session, job_id)
            if end_attribution(session, job):
                continue
            if job.state in BEGUN:
                reached = Exhausted.TEAM_GPU
                end_job(session, job, JobState.BUDGET_EXHAUSTED, reason=reached.value, message=reached.message)
    _log(over, JobState.BUDGET_EXHAUSTED)


def _reap_one(database: Database, job_id: uuid.UUID, step_id: uuid.UUID) -> None:
    with database.transaction() as session:
        job = lock_job(session, job_id)
        step = lock_expired(session, step_id)
        if step is None:
            return
        owner, attempt = step.lease_owner, step.attempt
        if job.cancel_requested_at is not None:
            lose_open_calls(session, job, [step_id])
            move_step(session, step, StepState.CANCELLED, attempt=attempt)
            outcome = "cancelled"
        else:
            if step.generation_id is not None:
                lock_generation(session, step.generation_id)
            outcome = _end_lost_attempt(session, job, step)
    logger.warning("reaped: %s owner=%s job=%s step=%s attempt=%d", outcome, owner, job_id, step_id, attempt)


def _end_lost_attempt(session: Session, job: Job, step: Step) -> str:
    """Charge the attempt of a lost worker; release the step of a batch whose lease ended, and charge nothing."""
    if step.batch_id is not None:
        return_from_batch(session, step, "lease_ended")
        return "released"
    why = "it ended, hangs or has lost Postgres, and its log says which"
    message = f"worker {step.lease_owner} stopped renewing its lease: {why}"
    return fail_attempt(session, job, step, "worker_lost", message, event="step.reaped")


def _log(jobs: Sequence[uuid.UUID], state: JobState) -> None:
    for job_id in jobs:
        logger.info("job ended: %s job=%s", state.value, job_id)
