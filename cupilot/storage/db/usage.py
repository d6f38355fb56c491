"""Device seconds: charged when a step leaves its worker, counted per job and per team and period.

A device second is one second for which a GPU worker held a step of the job, whatever came of it: the card was nobody
else's meanwhile. Money for models is counted from the calls.
"""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import Date, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.quota import QuotaPeriod
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import GpuUsage


def charge_gpu(session: Session, job_id: uuid.UUID, seconds: float) -> None:
    """Add to what a locked job, and so its team, has used."""
    session.flush()
    job = session.scalars(
        update(Job)
        .where(Job.id == job_id)
        .values(gpu_seconds=Job.gpu_seconds + seconds)
        .returning(Job)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).one()
    row = insert(GpuUsage).values(job_id=job_id, day=cast(func.now(), Date), team_id=job.team_id, seconds=seconds)
    more = {"seconds": GpuUsage.seconds + row.excluded.seconds}
    session.execute(row.on_conflict_do_update(index_elements=["job_id", "day"], set_=more))


def begin_of(session: Session, period: QuotaPeriod) -> datetime:
    """Return when the present period began."""
    begin: datetime = session.scalars(select(func.date_trunc(period.value, func.now()))).one()
    return begin


def gpu_seconds_since(session: Session, team_id: uuid.UUID, since: datetime) -> float:
    """Return what a team's jobs have used since a day began."""
    query = select(func.coalesce(func.sum(GpuUsage.seconds), 0.0))
    return session.scalars(query.where(GpuUsage.team_id == team_id, GpuUsage.day >= since.date())).one()
