"""Exclude time in which a job's steps lie in batches from its wall time: nobody can work on them meanwhile.

The job must be locked. The time is one span for all of its steps, from the first that was exported to the last that
left its batch; a pause that begins within the span ends it for this purpose, and counts as a pause from then on.
"""

from __future__ import annotations

import uuid

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import IN_A_BATCH, Step


def enter_batch(session: Session, job_id: uuid.UUID) -> None:
    """Note that a step of the job was exported."""
    _set(session, job_id, batched_at=func.coalesce(Job.batched_at, func.now()))


def leave_batch(session: Session, job_id: uuid.UUID) -> None:
    """Note that a step has left its batch; with the job's last one the span ends."""
    batched = select(Step.id).where(Step.job_id == job_id, IN_A_BATCH)
    if session.execute(select(batched.exists())).scalar_one():
        return
    begun = func.greatest(Job.batched_at, Job.started_at)
    until = func.least(func.coalesce(Job.paused_at, func.now()), func.now())
    away = func.coalesce(func.greatest(func.extract("epoch", until - begun), 0), 0)
    _set(session, job_id, paused_seconds=Job.paused_seconds + away, batched_at=None)


def _set(session: Session, job_id: uuid.UUID, **values: object) -> None:
    session.flush()
    session.scalars(
        update(Job)
        .where(Job.id == job_id)
        .values(**values)
        .returning(Job)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).one()
