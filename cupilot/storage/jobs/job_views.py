"""Jobs and their events as the REST boundary shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Select,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    inspect,
    or_,
    select,
    text,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, defer

from cupilot.domain.errors import NotFound
from cupilot.domain.evaluation import Baseline, Interval
from cupilot.domain.job import Priority
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Placement
from cupilot.domain.states import JobState
from cupilot.schemas import (
    BestSummary,
    EventPage,
    EventView,
    JobPage,
    JobSummary,
    JobView,
    PreparationSummary,
    ProblemRef,
    StateEntry,
)
from cupilot.schemas.jobs import JobFilter
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.engine import rows
from cupilot.storage.db.feed import events_after, last_settled_id
from cupilot.storage.db.json_columns import part
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Event, Generation, Job, ProblemRow, StrategyRow
from cupilot.storage.jobs.call_views import spending
from cupilot.storage.jobs.caveats import CAVEATS, warnings_from
from cupilot.storage.jobs.jobs import get_job
from cupilot.storage.jobs.wall_time import wall_seconds

Order = Literal["newest", "oldest"]
"""Which of a list comes first."""
LISTED = (defer(ProblemRow.source), defer(Job.budgets), defer(Job.learning), defer(Candidate.notes))
"""Options of a query for :func:`job_summary`: columns that it does not show."""
_PRIORITIES = (Priority.LOW, Priority.NORMAL, Priority.HIGH)

_STATES = {f"job.{state.value}": state.value for state in JobState}
_HISTORY = (
    select(
        func.json_agg(
            aggregate_order_by(
                func.json_build_array(Event.kind, Event.created_at, Event.data["reason"].astext), Event.id.asc()
            )
        )
    )
    .where(Event.job_id == Job.id, Event.kind.like(text("'job.%'")))
    .correlate(Job)
    .scalar_subquery()
)
"""Events of a job's transitions, which have an index of their own: in the query of the job, which is polled."""


@cache
def _job_query() -> Select[Any]:
    """Return the query of a job's columns, its problem's and its history, made once: making it takes as long as its
    answer."""
    names = [column.key for column in inspect(Job).column_attrs]
    shown = [getattr(Job, name) for name in names if name != Job.preparation.key]
    problem = [getattr(ProblemRow, name).label(f"problem_{name}") for name in ("name", "policy", "hash")]
    query = scoped(select(*shown, *problem, _HISTORY.label("history")), bindparam("team", type_=Uuid()))
    query = query.join(ProblemRow, ProblemRow.id == Job.problem_id)
    return query.where(Job.id == bindparam("job", type_=Uuid()))


def job_view(session: Session, team: UUID, job_id: UUID) -> JobView:
    """Return everything about a job's progress; NotFound for another team's."""
    job: Any = rows(session, _job_query(), {"team": team, "job": job_id}).one_or_none()
    if job is None:
        raise NotFound(f"no job {job_id}")
    problem = ProblemRef(id=job.problem_id, name=job.problem_name, policy=job.problem_policy, hash=job.problem_hash)
    return _view(session, job, problem, _history(job.history))


def new_job_view(session: Session, job: Job) -> JobView:
    """Return a job that this transaction has made, as :func:`job_view` will show it."""
    problem = _problem_ref(session.get_one(ProblemRow, job.problem_id))
    return _view(session, job, problem, [StateEntry(state=JobState.QUEUED.value, at=job.created_at)])


def _view(session: Session, job: Job, problem: ProblemRef, history: list[StateEntry]) -> JobView:
    # A job is polled most while nothing has come of it yet: what it cannot have is not asked for.
    waits = job.state is JobState.QUEUED
    verdicts, states = _counts(session, job.id) if job.candidates else ({}, {})
    wall = wall_seconds(job, lambda: session.execute(select(func.now())).scalar_one())
    return JobView(
        id=job.id,
        state=job.state,
        final=job.state.final,
        reason=job.reason,
        message=job.message,
        problem=problem,
        target=job.target,
        agents=job.agents,
        method=job.method,
        budgets=job.budgets,
        seed=job.seed,
        priority=job.priority,
        labels=job.labels,
        learning=job.learning,
        generation=job.generation,
        generations=job.method.rounds,
        candidates=job.candidates,
        verdicts=verdicts,
        candidate_states=states,
        best=_best(session, job),
        queue_position=_queue_position(session, job),
        wall_seconds=wall,
        gpu_seconds=job.gpu_seconds,
        cost_usd=job.cost_usd,
        spending=[] if waits else spending(session, job.id),
        preparation=None if waits else _preparation(session, job),
        author=job.author,
        history=history,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        pruned_at=job.pruned_at,
        cancel_requested_at=job.cancel_requested_at,
        paused_at=job.paused_at,
        retry_of=job.retry_of_id,
        forked_from=job.forked_from_id,
        retry_after_seconds=_retry_after(job, wall),
    )


def list_jobs(
    session: Session,
    team: UUID,
    filters: JobFilter,
    *,
    order: Order = "newest",
    cursor: str | None,
    limit: int,
) -> JobPage:
    """Return the team's jobs in this order of submission, from a cursor on."""
    place, bound = tuple_(Job.created_at, Job.id), "" if order == "newest" else order
    query = (
        scoped(select(Job, ProblemRow, Candidate), team)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .outerjoin(Candidate, Candidate.id == Job.best_candidate_id)
        .options(*LISTED)
        .order_by(*(column.desc() if order == "newest" else column for column in (Job.created_at, Job.id)))
        .limit(limit + 1)
    )
    query = query.where(*_conditions(filters))
    if cursor:
        start = decode_cursor(cursor, bound)
        query = query.where(place < start if order == "newest" else place > start)
    found = session.execute(query).all()
    page = found[:limit]
    return JobPage(
        items=[job_summary(job, problem, best) for job, problem, best in page],
        next_cursor=encode_cursor(page[-1][0].created_at, page[-1][0].id, bound) if len(found) > limit else None,
    )


def _conditions(filters: JobFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if state := filters.get("state"):
        conditions.append(Job.state.in_([JobState(state)] if isinstance(state, str) else [*map(JobState, state)]))
    if target := filters.get("target"):
        conditions.append(Job.target == Target(target))
    if (problem := filters.get("problem")) is not None:
        conditions.append(ProblemRow.name == problem)
    if labels := filters.get("labels"):
        conditions.append(Job.labels.contains(dict(labels)))
    if (user := filters.get("user")) is not None:
        conditions.append(Job.author == user)
    if (words := filters.get("text")) is not None:
        named = ProblemRow.name.icontains(words, autoescape=True)
        conditions.append(or_(named, cast(Job.id, Text).startswith(words.lower(), autoescape=True)))
    if (device := filters.get("device")) is not None:
        name = Job.preparation["environment"]["device"]["name"].astext
        conditions.append(name.icontains(device, autoescape=True))
    if since := filters.get("since"):
        conditions.append(Job.created_at >= since)
    if until := filters.get("until"):
        conditions.append(Job.created_at < until)
    return conditions


def list_events(session: Session, team: UUID, job_id: UUID, *, after: int, limit: int) -> EventPage:
    """Return a job's events with ids above ``after``, in order; none that a later page would have to go back for."""
    job = get_job(session, team, job_id)
    return _event_page(events_after(session, after, last_settled_id(session), limit, job=job.id), after)


def list_team_events(session: Session, team: UUID, *, after: int, limit: int) -> EventPage:
    """Return a page of the events of all jobs of a team."""
    return _event_page(events_after(session, after, last_settled_id(session), limit, team=team), after)


def event_view(row: Event) -> EventView:
    """Return one event."""
    return EventView(
        id=row.id,
        kind=row.kind,
        job=row.job_id,
        candidate=row.candidate_id,
        step=row.step_id,
        data=row.data,
        created_at=row.created_at,
    )


def _event_page(rows: Sequence[tuple[Event, UUID]], after: int) -> EventPage:
    items = [event_view(event) for event, _ in rows]
    return EventPage(items=items, next_after=items[-1].id if items else after)


def _best(session: Session, job: Job) -> BestSummary | None:
    if job.best_candidate_id is None:
        return None
    row = session.execute(
        select(Candidate, EvaluationRow.body, StrategyRow.body, Generation.number)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .join(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .join(Generation, Generation.id == Candidate.generation_id)
        .where(Candidate.id == job.best_candidate_id)
    ).one_or_none()
    if row is None:
        return None
    candidate, evaluation, strategy, generation = row
    eager = evaluation.comparison(Baseline.EAGER)
    if eager is None or candidate.verdict is None or not candidate.verdict.counts:
        return None
    compiled = evaluation.comparison(Baseline.COMPILE)
    return BestSummary(
        candidate=candidate.id,
        ordinal=candidate.ordinal,
        generation=generation,
        verdict=candidate.verdict,
        speedup=eager.speedup,
        speedup_over_compile=compiled.speedup if compiled else None,
        kernel_us=eager.kernel_us,
        baseline_us=eager.baseline_us,
        strategy=strategy,
        kernel_kind=evaluation.kernel_kind,
    )


def _counts(session: Session, job: UUID) -> tuple[dict[str, int], dict[str, int]]:
    query = (
        select(Candidate.verdict, Candidate.state, func.count())
        .where(Candidate.job_id == job)
        .group_by(Candidate.verdict, Candidate.state)
    )
    verdicts: dict[str, int] = {}
    states: dict[str, int] = {}
    for verdict, state, count in session.execute(query):
        states[state.value] = states.get(state.value, 0) + count
        if verdict is not None:
            verdicts[verdict.value] = verdicts.get(verdict.value, 0) + count
    return verdicts, states


def _history(transitions: Sequence[Sequence[Any]] | None) -> list[StateEntry]:
    """Return a job's states from what :data:`_HISTORY` has found."""
    return [
        StateEntry(state=_STATES[kind], at=datetime.fromisoformat(at), reason=reason)
        for kind, at, reason in transitions or ()
        if kind in _STATES
    ]


def _queue_position(session: Session, job: Job) -> int | None:
    """Return an estimate: by fair share a later job of another team may begin first."""
    if job.state is not JobState.QUEUED:
        return None
    values = {"target": job.target, "created_at": job.created_at, "job": job.id}
    return int(rows(session, _queued_before(job.priority, is_queued=True), values).scalar_one())


def queued_before(session: Session, target: Target, priority: Priority) -> int:
    """Return how many queued jobs would come before one of this priority that is yet to be made."""
    return session.execute(_queued_before(priority, is_queued=False), {"target": target}).scalar_one()


@cache
def _queued_before(priority: Priority, *, is_queued: bool) -> Select[int]:
    """Return the query of the jobs before one: all of a higher priority, and those of its own that are earlier."""
    above = _PRIORITIES[_PRIORITIES.index(priority) + 1 :]
    mine = tuple_(bindparam("created_at", type_=DateTime(timezone=True)), bindparam("job", type_=Uuid()))
    earlier = tuple_(Job.created_at, Job.id) < mine if is_queued else true()
    before = or_(Job.priority.in_(above), (Job.priority == priority) & earlier)
    return select(func.count()).where(
        Job.state == JobState.QUEUED, Job.finished_at.is_(None), Job.target == bindparam("target"), before
    )


def job_summary(job: Job, problem: ProblemRow, best: Candidate | None) -> JobSummary:
    """Return a job as a list shows it."""
    return JobSummary(
        id=job.id,
        state=job.state,
        final=job.state.final,
        reason=job.reason,
        problem=_problem_ref(problem),
        target=job.target,
        agents=job.agents,
        priority=job.priority,
        labels=job.labels,
        generation=job.generation,
        generations=job.method.rounds,
        candidates=job.candidates,
        best_verdict=best.verdict if best else None,
        best_speedup=best.speedup if best else None,
        cost_usd=job.cost_usd,
        author=job.author,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def _problem_ref(row: ProblemRow) -> ProblemRef:
    return ProblemRef(id=row.id, name=row.name, policy=row.policy, hash=row.hash)


def _preparation(session: Session, job: Job) -> PreparationSummary | None:
    # Only these parts: a large reference's graph has thousands of nodes, and this is polled.
    query = select(
        Job.preparation["facts"]["op_class"].astext,
        part(Job.preparation["placement"], Placement),
        part(Job.preparation["baseline_us"], Interval),
        Job.preparation["environment"]["device"]["name"].astext,
        part(Job.preparation["notes"], tuple[str, ...]),
        *CAVEATS,
    ).where(Job.id == job.id, Job.preparation.is_not(None))
    row = session.execute(query).one_or_none()
    if row is None:
        return None
    op_class, placement, baseline_us, device, notes, *caveats = row
    return PreparationSummary(
        op_class=op_class,
        zone=placement.zone,
        intensity=placement.intensity,
        floor_us=placement.floor_us,
        direct_us=placement.direct_us,
        baseline_us=baseline_us,
        device=device,
        notes=notes,
        warnings=warnings_from(*caveats),
    )


def _retry_after(job: Job, wall: float) -> float | None:
    """Return a sixtieth of the job's age, from one second to ten: a job of an hour does not change every second."""
    if job.state.final:
        return None
    return min(max(1.0, wall / 60.0), 10.0)
