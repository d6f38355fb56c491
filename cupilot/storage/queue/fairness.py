"""Choose the next step: weighted fair shares of a queue between teams, and of a team's share between its jobs.

Shares are measured in seconds of workers, on device queues GPU seconds: what finished steps took, fading with their
age; what running ones have taken, at least an average step's; an average step's for each that is on its way. The next
slot goes to the team with the least for its weight, and in the team to the job with the least for its priority. Age
decides between equals only, so a job of a thousand steps does not hold up a job of one.

Fading bounds both credit and debt: a team that was idle for hours has no more credit than one that was idle for a few
times :data:`USAGE_FADES_SECONDS`, and one that had the cluster to itself waits for no longer than that. No share is
ever nothing, since whoever waits falls behind no further while all others' use grows: nobody starves.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import CTE, ColumnElement, Double, and_, case, cast, func, or_, select, true
from sqlalchemy.orm import Session

from cupilot.domain.job import Priority
from cupilot.domain.states import StepState
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import Step

USAGE_FADES_SECONDS = 900.0
"""Time in which use of a queue fades to 37 %: long beside a step, short beside a working day."""
FIRST_GUESS_SECONDS = 1.0
"""What a step takes, while none of the queue is known."""

PRIORITY_WEIGHT = case((Job.priority == Priority.HIGH, 4.0), (Job.priority == Priority.NORMAL, 2.0), else_=1.0)
"""Shares of a team's jobs. Weights rather than an order: a stream of urgent jobs does not starve the others."""


def step_seconds(session: Session, queue: str) -> float:
    """Return what a step of the queue takes on average these days."""
    average = session.scalars(select(func.avg(Step.busy_seconds)).where(*_lately(queue))).one()
    return FIRST_GUESS_SECONDS if average is None else float(average)


def fair_order(
    jobs: ColumnElement[bool], ready: ColumnElement[bool], queue: str, step_seconds: float, count: int
) -> Any:
    """Return a query for the ids of the next ``count`` steps of a queue, in the order in which they go.

    ``jobs`` and ``ready`` are the conditions on jobs that may go on and on steps that wait. Of each job only as many
    steps are looked at as could go, so that a backlog costs what its jobs cost, not what its steps do.
    """
    used = _jobs(queue, step_seconds)
    teams = select(used.c.team_id, func.sum(used.c.seconds).label("seconds")).group_by(used.c.team_id).subquery()
    oldest = (
        select(Step.id, Step.created_at)
        .where(Step.job_id == Job.id, Step.queue == queue, ready)
        .order_by(Step.created_at, Step.id)
        .limit(count)
        .lateral("oldest")
    )
    in_job = func.row_number().over(partition_by=Job.id, order_by=(oldest.c.created_at, oldest.c.id))
    job_use = func.coalesce(used.c.seconds, 0.0) + in_job * step_seconds
    rows = (
        select(
            oldest.c.id,
            Job.team_id,
            (job_use / PRIORITY_WEIGHT).label("job_share"),
            func.coalesce(teams.c.seconds, 0.0).label("team_use"),
            Team.weight,
            Job.created_at.label("age"),
            oldest.c.created_at.label("step_age"),
        )
        .select_from(Job)
        .join(oldest, true())
        .join(Team, Team.id == Job.team_id)
        .outerjoin(used, used.c.job_id == Job.id)
        .outerjoin(teams, teams.c.team_id == Team.id)
        .where(jobs)
        .subquery()
    )
    job_order = (rows.c.job_share, rows.c.age, rows.c.step_age, rows.c.id)
    turn = func.row_number().over(partition_by=rows.c.team_id, order_by=job_order).label("turn")
    turns = select(rows, turn).subquery()
    team_share = (turns.c.team_use + turns.c.turn * step_seconds) / turns.c.weight
    return select(turns.c.id).order_by(team_share, turns.c.age, turns.c.turn).limit(count)


def shares(queue: str) -> Any:
    """Return the query for (team id, seconds) of a queue as fair shares count them, without teams that used none."""
    jobs = _jobs(queue, 0.0)
    return select(jobs.c.team_id, func.sum(jobs.c.seconds)).group_by(jobs.c.team_id)


def _jobs(queue: str, step_seconds: float) -> CTE:
    """Return what each job has used of the queue lately, or holds of it now."""
    # What finished in the future did so before the database's clock was set back.
    age = func.greatest(func.extract("epoch", func.now() - Step.finished_at), 0)
    going_on = func.extract("epoch", func.now() - Step.started_at)
    seconds = case(
        (Step.finished_at.is_not(None), Step.busy_seconds * func.exp(-age / USAGE_FADES_SECONDS)),
        # What a batch holds is on no device for most of the time.
        (Step.batch_id.is_not(None) & (Step.state == StepState.RUNNING), Step.busy_seconds + step_seconds),
        (Step.state == StepState.RUNNING, Step.busy_seconds + func.greatest(going_on, step_seconds)),
        (Step.dispatched_at.is_not(None), Step.busy_seconds + step_seconds),
        else_=Step.busy_seconds,
    )
    counted = or_((Step.queue == queue) & Step.finished_at.is_(None) & published_or_claimed(), and_(*_lately(queue)))
    return (
        select(Job.id.label("job_id"), Job.team_id, cast(func.sum(seconds), Double).label("seconds"))
        .join(Step, Step.job_id == Job.id)
        .where(counted)
        .group_by(Job.id, Job.team_id)
        .cte()
    )


def published_or_claimed() -> ColumnElement[bool]:
    """Return the condition that an open step was published or claimed; all others have used nothing."""
    return or_(Step.state == StepState.RUNNING, Step.dispatched_at.is_not(None), Step.busy_seconds > 0)


def _lately(queue: str) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a finished step still counts; older use has faded to 2 %."""
    since = func.now() - timedelta(seconds=4 * USAGE_FADES_SECONDS)
    return (Step.queue == queue, Step.started_at.is_not(None), Step.finished_at > since)
