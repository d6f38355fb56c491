"""Choose the next step: weighted fair shares of a queue between teams, and of a team's share between priorities.

Shares are measured in seconds of workers, or of devices on their queues: what finished steps took, fading with their
age; what running ones have taken, at least an average step's; an average step's for each that is on its way. The next
slot goes to the team with the least for its weight, and in the team to the priority with the least for its own. Of one
team and priority, the job that began first goes first, so that it ends before later ones overtake it: they take what it
leaves. Whoever wants a small job to overtake a large one gives it a higher priority.

Fading bounds both credit and debt: a team that was idle for hours has no more credit than one that was idle for a few
times :data:`USAGE_FADES_SECONDS`, and one that had the cluster to itself waits for no longer than that. No share is
ever nothing, since whoever waits falls behind no further while all others' use grows: nobody starves.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CTE,
    BindParameter,
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session

from cupilot.domain.job import Priority
from cupilot.domain.states import StepState
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.queue import IN_A_BATCH, Step

USAGE_FADES_SECONDS = 900.0
"""Time in which use of a queue fades to 37 %: long beside a step, short beside a working day."""
FIRST_GUESS_SECONDS = 1.0
"""Assumed duration of a step while none of the queue is known."""

PRIORITY_WEIGHT = case((Job.priority == Priority.HIGH, 4.0), (Job.priority == Priority.NORMAL, 2.0), else_=1.0)
"""Shares of a team's priorities. Weights rather than an order: a stream of urgent jobs does not starve the others."""

QUEUE = bindparam("queue", type_=Text())
COUNT = bindparam("count", type_=Integer())
_SECONDS: BindParameter[float] = bindparam("step_seconds", type_=Double())
"""Parameters of :func:`fair_order`, whose queries are made once: making one takes longer than its answer."""


def step_seconds(session: Session, queue: str) -> float:
    """Return what a step of the queue takes on average these days."""
    average = session.scalars(_average(), {"queue": queue}).one()
    return FIRST_GUESS_SECONDS if average is None else float(average)


@cache
def _average() -> Select[Any]:
    return select(func.avg(Step.busy_seconds)).where(*_lately(QUEUE))


def fair_order(jobs: ColumnElement[bool], ready: ColumnElement[bool]) -> Select[Any]:
    """Return a query for the ids of the next steps of a queue, in the order in which they go; its values are those of
    :func:`fair_values`.

    ``jobs`` and ``ready`` are the conditions on jobs that may go on and on steps that wait. Of each job only as many
    steps are looked at as could go, so that a backlog costs what its jobs cost, not what its steps do.
    """
    used = _used(QUEUE, _SECONDS)
    teams = select(used.c.team_id, func.sum(used.c.seconds).label("seconds")).group_by(used.c.team_id).subquery()
    oldest = (
        select(Step.id, Step.created_at)
        .where(Step.job_id == Job.id, Step.queue == QUEUE, ready)
        .order_by(Step.created_at, Step.id)
        .limit(COUNT)
        .lateral("oldest")
    )
    by_age = (Job.started_at.asc().nulls_last(), Job.created_at, Job.id, oldest.c.created_at, oldest.c.id)
    in_class = func.row_number().over(partition_by=(Job.team_id, Job.priority), order_by=by_age)
    class_use = func.coalesce(used.c.seconds, 0.0) + in_class * _SECONDS
    rows = (
        select(
            oldest.c.id,
            Job.team_id,
            (class_use / PRIORITY_WEIGHT).label("class_share"),
            func.coalesce(teams.c.seconds, 0.0).label("team_use"),
            Team.weight,
            Job.created_at.label("age"),
            in_class.label("in_class"),
        )
        .select_from(Job)
        .join(oldest, true())
        .join(Team, Team.id == Job.team_id)
        .outerjoin(used, and_(used.c.team_id == Job.team_id, used.c.priority == Job.priority))
        .outerjoin(teams, teams.c.team_id == Team.id)
        .where(jobs)
        .subquery()
    )
    in_team = (rows.c.class_share, rows.c.age, rows.c.in_class, rows.c.id)
    turn = func.row_number().over(partition_by=rows.c.team_id, order_by=in_team).label("turn")
    turns = select(rows, turn).subquery()
    team_share = (turns.c.team_use + turns.c.turn * _SECONDS) / turns.c.weight
    return select(turns.c.id).order_by(team_share, turns.c.age, turns.c.turn).limit(COUNT)


def fair_values(queue: str, step_seconds: float, count: int) -> dict[str, Any]:
    """Return the values of a :func:`fair_order` for ``count`` steps of a queue, whose steps take so long on average."""
    return {"queue": queue, "step_seconds": step_seconds, "count": count}


def shares(queue: str) -> Any:
    """Return the query for (team id, seconds) of a queue as fair shares count them, without teams that used none."""
    used = _used(queue, 0.0)
    return select(used.c.team_id, func.sum(used.c.seconds)).group_by(used.c.team_id)


def _used(queue: str | BindParameter[str], step_seconds: float | BindParameter[float]) -> CTE:
    """Return what each team's jobs of a priority have used of the queue lately, or hold of it now."""
    # What finished in the future did so before the database's clock was set back.
    age = func.greatest(func.extract("epoch", func.now() - Step.finished_at), 0)
    going_on = func.extract("epoch", func.now() - Step.started_at)
    seconds = case(
        (Step.finished_at.is_not(None), Step.busy_seconds * func.exp(-age / USAGE_FADES_SECONDS)),
        # What a batch holds is on no device for most of the time.
        (IN_A_BATCH, Step.busy_seconds + step_seconds),
        (Step.state == StepState.RUNNING, Step.busy_seconds + func.greatest(going_on, step_seconds)),
        (Step.dispatched_at.is_not(None), Step.busy_seconds + step_seconds),
        else_=Step.busy_seconds,
    )
    counted = or_((Step.queue == queue) & Step.finished_at.is_(None) & published_or_claimed(), and_(*_lately(queue)))
    return (
        select(Job.team_id, Job.priority, cast(func.sum(seconds), Double).label("seconds"))
        .join(Step, Step.job_id == Job.id)
        .where(counted)
        .group_by(Job.team_id, Job.priority)
        .cte()
    )


def published_or_claimed() -> ColumnElement[bool]:
    """Return the condition that an open step was published or claimed; all others have used nothing."""
    return or_(Step.state == StepState.RUNNING, Step.dispatched_at.is_not(None), Step.busy_seconds > 0)


def _lately(queue: str | BindParameter[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a finished step still counts; older use has faded to 2 %."""
    since = func.now() - timedelta(seconds=4 * USAGE_FADES_SECONDS)
    return (Step.queue == queue, Step.started_at.is_not(None), Step.finished_at > since)
