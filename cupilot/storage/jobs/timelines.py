"""Read the use of a job, a team and the cluster over time, for figures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.states import StepKind
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.people import GpuUsage
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.jobs import get_job

DAYS = 30
MAX_POINTS = 2_000
"""The first so many are drawn: a figure has not as many pixels."""


def used_device_seconds(session: Session, team: UUID, job_id: UUID) -> list[tuple[float, float]]:
    """Return (minutes since the submission, seconds on devices so far), a point a step that has ended."""
    job = get_job(session, team, job_id)
    kinds = [kind for kind in StepKind if kind.on_device]
    query = select(Step.finished_at, Step.busy_seconds).where(
        Step.job_id == job.id, Step.finished_at.is_not(None), Step.kind.in_(kinds)
    )
    return _summed(session.execute(query.order_by(Step.finished_at).limit(MAX_POINTS)), job.created_at)


def used_dollars(session: Session, team: UUID, job_id: UUID) -> list[tuple[float, float]]:
    """Return (minutes since the submission, US dollars for models so far), a point a call that was answered."""
    job = get_job(session, team, job_id)
    query = select(LlmCall.finished_at, LlmCall.cost_usd).where(
        LlmCall.job_id == job.id, LlmCall.finished_at.is_not(None), LlmCall.cost_usd > 0
    )
    return _summed(session.execute(query.order_by(LlmCall.finished_at).limit(MAX_POINTS)), job.created_at)


def gpu_days(session: Session, team: UUID | None = None) -> list[tuple[float, float]]:
    """Return (days from today, device seconds on that day), of a team or of all; empty where none was used."""
    today: date = session.execute(select(func.current_date())).scalar_one()
    query = select(GpuUsage.day, func.sum(GpuUsage.seconds)).where(GpuUsage.day > today - timedelta(days=DAYS))
    if team is not None:
        query = query.where(GpuUsage.team_id == team)
    used = {(day - today).days: seconds for day, seconds in session.execute(query.group_by(GpuUsage.day))}
    return [(float(day), used.get(day, 0.0)) for day in range(1 - DAYS, 1)] if used else []


def _summed(rows: Iterable[tuple[datetime | None, float]], begun: datetime) -> list[tuple[float, float]]:
    points, total = [(0.0, 0.0)], 0.0
    for moment, amount in rows:
        assert moment is not None
        total += amount
        points.append(((moment - begun).total_seconds() / 60, total))
    return points
