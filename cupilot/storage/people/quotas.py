"""Check a team's quota before it begins, queues or resumes a job, in that transaction, the team's row locked.

Rows are locked in the order job, team: nobody who holds a team waits for a job that exists. What a team may spend on
models is checked where calls are recorded.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Date, Select, Text, Uuid, bindparam, case, cast, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from cupilot.domain.job import Priority
from cupilot.domain.quota import Quota, QuotaExceeded
from cupilot.domain.states import JobState
from cupilot.storage.db.engine import rows
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import GpuUsage, Team
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import not_locked

BEGUN = (JobState.PREPARING, JobState.EVOLVING)
"""States that count as running; a paused job does not, and takes its place again when it is resumed."""
_OPEN = Job.finished_at.is_(None)
"""Said with every state that is looked for: the index of open jobs is found by it, not by what a state means."""
FIRST_STEP = "prepare"
"""Key of the step with which a job begins."""
_QUEUE_LIMIT = select(Team.max_queued_jobs).where(Team.id == bindparam("team", type_=Uuid()))
_RANK = case((Job.priority == Priority.HIGH, 0), (Job.priority == Priority.NORMAL, 1), else_=2)


def quota_of(team: Team) -> Quota:
    """Return what the team may use."""
    return Quota(**{name: getattr(team, name) for name in Quota.model_fields})


def check_queue(session: Session, team_id: uuid.UUID, *, coming: int = 0) -> None:
    """Raise :class:`QuotaExceeded` where the team has more queued jobs than it may, or would with those that come.

    Asked after a job was queued, which counts then, and for one that only might be.
    """
    if rows(session, _QUEUE_LIMIT, {"team": team_id}).scalar_one() is None:
        return  # nothing to count: submissions of the team need not wait for each other
    quota = quota_of(_locked(session, team_id))
    queued = _count(session, team_id, (JobState.QUEUED,)) + coming
    if quota.max_queued_jobs is not None and queued > quota.max_queued_jobs:
        raise QuotaExceeded(
            f"the team's queue is full: its limit is {quota.max_queued_jobs}",
            hint="wait until a job begins, cancel one, or ask the service's operators for a larger quota",
            where="quota.max_queued_jobs",
        )


def takes_running_slot(session: Session, job: Job) -> bool:
    """Return whether a locked job that is queued or paused may go on now: checks the scheduler's choice again."""
    quota = quota_of(_locked(session, job.team_id))
    room = quota.max_running_jobs is None or _count(session, job.team_id, BEGUN) < quota.max_running_jobs
    return room and job.team_id not in teams_without_gpu(session)


def check_resume(session: Session, job: Job) -> None:
    """Raise :class:`QuotaExceeded` where a locked, paused job may not go on now."""
    if not takes_running_slot(session, job):
        raise QuotaExceeded(
            "the team has reached its limit of running jobs, or has used up its device seconds of this period",
            hint="GET /v1/quota says which; pause or cancel another job, or wait for the next period",
            where="quota",
        )


def may_begin() -> ColumnElement[bool]:
    """Return the condition that a queued job's turn has come within its quota. A hint; the claim checks again."""
    begun = aliased(Job)
    # Counted once for all teams: a look for each queued job would cost the square of their number.
    going_on = begun.state.in_(BEGUN) & begun.finished_at.is_(None)
    counts = select(begun.team_id, func.count().label("jobs")).where(going_on).group_by(begun.team_id).subquery()
    # In each queue by itself: a job that waits for workers which are not there holds up none that has some.
    queue = select(Step.queue).where(Step.job_id == Job.id, Step.key == FIRST_STEP).scalar_subquery()
    turn = func.row_number().over(partition_by=(Job.team_id, queue), order_by=(_RANK, Job.created_at, Job.id))
    queued = select(Job.id, Job.team_id, turn.label("turn")).where(Job.state == JobState.QUEUED, _OPEN).subquery()
    taken = func.coalesce(counts.c.jobs, 0) + queued.c.turn
    allowed = (
        select(queued.c.id)
        .join(Team, Team.id == queued.c.team_id)
        .outerjoin(counts, counts.c.team_id == Team.id)
        .where(or_(Team.max_running_jobs.is_(None), taken <= Team.max_running_jobs))
        .where(Team.id.not_in(_without_gpu()))
    )
    return Job.id.in_(allowed)


def teams_without_gpu(session: Session) -> set[uuid.UUID]:
    """Return teams that have used the device seconds of their period."""
    return set(session.scalars(_without_gpu()))


def jobs_without_gpu(session: Session) -> Sequence[uuid.UUID]:
    """Return jobs that have begun, of teams that have used the device seconds of their period."""
    return session.scalars(select(Job.id).where(Job.state.in_(BEGUN), _OPEN, Job.team_id.in_(_without_gpu()))).all()


def note_held_back(session: Session) -> None:
    """Write on each queued job whether it waits for its team's quota, and for which."""
    used_up = Job.team_id.in_(_without_gpu())
    _note(session, "gpu_quota", "the team's device seconds of this period are used up", used_up)
    message = "the team has reached its limit of running jobs"
    _note(session, "running_quota", message, ~used_up & ~may_begin())


def _note(session: Session, reason: str, message: str, applies: ColumnElement[bool]) -> None:
    queued = (Job.state == JobState.QUEUED) & _OPEN
    changes = (
        (queued & applies & Job.reason.is_distinct_from(reason), reason, message),
        (queued & ~applies & (Job.reason == reason), None, None),
    )
    for condition, word, text in changes:
        jobs = not_locked(select(Job.id).where(condition))
        changed = update(Job).where(Job.id == jobs.c.id).values(reason=word, message=text)
        session.execute(changed.execution_options(synchronize_session=False))


def _without_gpu() -> Select[uuid.UUID]:
    begin = cast(func.date_trunc(cast(Team.period, Text), func.now()), Date)
    return (
        select(Team.id)
        .outerjoin(GpuUsage, (GpuUsage.team_id == Team.id) & (GpuUsage.day >= begin))
        .where(Team.gpu_seconds.is_not(None))
        .group_by(Team.id)
        .having(func.coalesce(func.sum(GpuUsage.seconds), 0.0) >= Team.gpu_seconds)
    )


def _locked(session: Session, team_id: uuid.UUID) -> Team:
    return session.get_one(Team, team_id, with_for_update={"key_share": True}, populate_existing=True)


def _count(session: Session, team_id: uuid.UUID, states: Sequence[JobState]) -> int:
    query = select(func.count()).where(Job.team_id == team_id, Job.state.in_(states), _OPEN)
    return session.execute(query).scalar_one()
