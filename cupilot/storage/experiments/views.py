"""Experiments and their progress as the REST boundary shows them; reports are in :mod:`cupilot.reports.experiment`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.experiments.matrix import at_most
from cupilot.domain.states import JobState
from cupilot.schemas import (
    ArmProgress,
    ExperimentJob,
    ExperimentJobPage,
    ExperimentPage,
    ExperimentSummary,
    ExperimentView,
)
from cupilot.storage.db.cursor import cut, decode_cursor, decode_key, encode_cursor, encode_key
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.experiments import Experiment
from cupilot.storage.db.tables.jobs import Candidate, Job, ProblemRow
from cupilot.storage.experiments.experiments import get_experiment, state_of
from cupilot.storage.jobs.job_views import LISTED, job_summary

LOOK_SECONDS = 3.0
"""Seconds until a client should ask again: an experiment of an hour does not change every second."""


def experiment_view(session: Session, team: UUID, experiment_id: UUID) -> ExperimentView:
    """Return everything about an experiment's progress; NotFound for another team's."""
    experiment = get_experiment(session, team, experiment_id)
    spec = experiment.spec
    progress = _progress(session, experiment)
    summary = _summary(session, experiment)
    return ExperimentView(
        **summary.model_dump(),
        arms=list(spec.arms),
        reference=spec.reference,
        problems=list(spec.problems),
        seeds=list(spec.seeds),
        budgets=spec.budgets,
        at_most=at_most(spec.arms, spec.budgets, len(spec.problems) * len(spec.seeds)),
        device_class=spec.device_class,
        live_pool=spec.live_pool,
        progress=[
            ArmProgress(name=arm.name, jobs=sum(states.values()), states=dict(states))
            for arm in spec.arms
            for states in [progress.get(arm.name, {})]
        ],
        cancel_requested_at=experiment.cancel_requested_at,
        retry_after_seconds=None if summary.final else LOOK_SECONDS,
    )


def list_experiments(session: Session, team: UUID, *, cursor: str | None, limit: int) -> ExperimentPage:
    """Return the team's experiments, newest first, from a cursor on."""
    query = scoped(select(Experiment), team).order_by(Experiment.created_at.desc(), Experiment.id.desc())
    if cursor:
        query = query.where(tuple_(Experiment.created_at, Experiment.id) < decode_cursor(cursor))
    rows = session.scalars(query.limit(limit + 1)).all()
    page = rows[:limit]
    return ExperimentPage(
        items=[_summary(session, row) for row in page],
        next_cursor=encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None,
    )


IN_ORDER = "jobs of an experiment"


def list_experiment_jobs(
    session: Session,
    team: UUID,
    experiment_id: UUID,
    *,
    arm: str | None,
    cursor: str | None = None,
    after: int | None = None,
    limit: int,
) -> ExperimentJobPage:
    """Return an experiment's jobs in the order of work, behind ``cursor``, or with positions above ``after``."""
    experiment = get_experiment(session, team, experiment_id)
    query = (
        select(Job, ProblemRow, Candidate)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .outerjoin(Candidate, Candidate.id == Job.best_candidate_id)
        .options(*LISTED)
        .where(Job.experiment_id == experiment.id)
        .order_by(Job.created_at)
    )
    if cursor is not None:
        (after,) = decode_key(cursor, IN_ORDER, int)
    if after is not None:
        query = query.where(Job.created_at > experiment.created_at + timedelta(microseconds=after))
    if arm is not None:
        query = query.where(Job.arm == arm)
    rows = session.execute(query.limit(limit + 1)).all()
    shown, following = cut(rows, limit, lambda row: encode_key(IN_ORDER, position_of(experiment, row[0])))
    items = [
        ExperimentJob(
            position=position_of(experiment, job),
            arm=job.arm or "",
            seed=job.seed,
            job=job_summary(job, problem, best),
        )
        for job, problem, best in shown
    ]
    return ExperimentJobPage(items=items, next_cursor=following, next_after=items[-1].position if following else None)


def position_of(experiment: Experiment, job: Job) -> int:
    """Return a job's place in the order of work: its age tells."""
    return (job.created_at - experiment.created_at) // timedelta(microseconds=1)


def _progress(session: Session, experiment: Experiment) -> Mapping[str, Mapping[str, int]]:
    query = (
        select(Job.arm, Job.state, func.count())
        .where(Job.experiment_id == experiment.id)
        .group_by(Job.arm, Job.state)
        .order_by(Job.state)
    )
    progress: dict[str, dict[str, int]] = {}
    for arm, state, count in session.execute(query):
        progress.setdefault(arm or "", {})[state.value] = count
    return progress


def _summary(session: Session, experiment: Experiment) -> ExperimentSummary:
    query = (
        select(Job.state, func.count(), func.sum(Job.cost_usd), func.sum(Job.gpu_seconds), func.max(Job.finished_at))
        .where(Job.experiment_id == experiment.id)
        .group_by(Job.state)
    )
    rows = session.execute(query).all()
    counts: dict[JobState, int] = {state: count for state, count, *_ in rows}
    finished = sum(count for state, count in counts.items() if state.final)
    ends: list[datetime] = [end for *_, end in rows if end is not None]
    final = finished == sum(counts.values())
    return ExperimentSummary(
        id=experiment.id,
        name=experiment.name,
        state=state_of(experiment, counts),
        final=final,
        target=experiment.spec.target,
        jobs=sum(counts.values()),
        finished=finished,
        cost_usd=sum(cost for _, _, cost, *_ in rows),
        gpu_seconds=sum(seconds for _, _, _, seconds, _ in rows),
        created_at=experiment.created_at,
        finished_at=max(ends) if final and ends else None,
    )
