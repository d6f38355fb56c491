"""Estimate what a job will use from the team's earlier ones. Promises nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from uuid import UUID

from sqlalchemy import Float, Integer, cast, extract, func, or_, select
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.job import JobSpec
from cupilot.domain.problem import ProblemFacts
from cupilot.domain.states import JobState
from cupilot.schemas import JobGuess
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Job, ProblemRow
from cupilot.storage.db.tables.models import LlmCall

NEWEST = 20
"""Jobs that a guess rests on at most: the newest, since devices, models and this program change."""
NO_TEMPLATE = "no_template"
"""Reason of a job whose agents had no template for its operator."""
FUTILE = frozenset({NO_TEMPLATE, FailureKind.INVALID_PROBLEM.value})
"""Reasons of jobs that end in the same way the next time: the same agents have no template for the operator, or the
file cannot be judged."""
WHOLE = (JobState.SUCCEEDED, JobState.BUDGET_EXHAUSTED)
"""Ends of jobs that were not cut off by a fault or a person."""


@dataclass(frozen=True)
class _Use:
    """Use of an earlier job per candidate."""

    wall_seconds: float
    gpu_seconds: float
    cost_usd: float
    tokens: float


def guess(session: Session, team: UUID, spec: JobSpec, candidates: int) -> JobGuess | None:
    """Estimate by jobs on the same problem, else by those on all problems; None where there are none."""
    for problem in (spec.problem.content_hash(), None):
        used = _used(session, team, spec, problem)
        if used:
            return JobGuess(
                jobs=len(used),
                same_problem=problem is not None,
                wall_seconds=candidates * median(use.wall_seconds for use in used),
                gpu_seconds=candidates * median(use.gpu_seconds for use in used),
                cost_usd=candidates * median(use.cost_usd for use in used),
                tokens=round(candidates * median(use.tokens for use in used)),
            )
    return None


def futile_end(session: Session, team: UUID, spec: JobSpec) -> tuple[str, str] | None:
    """Return reason and message of the team's newest job on this problem, target and kind of agents, if it is futile.

    None where that job ended otherwise, or there is none.
    """
    query = (
        scoped(select(Job.reason, Job.message), team)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .where(ProblemRow.hash == spec.problem.content_hash())
        .where(Job.target == spec.target, Job.agents == spec.agents, Job.finished_at.is_not(None))
        .order_by(Job.created_at.desc())
        .limit(1)
    )
    newest = session.execute(query).one_or_none()
    return (newest.reason, newest.message or "") if newest is not None and newest.reason in FUTILE else None


def traced(session: Session, team: UUID, spec: JobSpec) -> ProblemFacts | None:
    """Return what an earlier job of the team found of this problem; None where none got so far."""
    query = (
        scoped(select(Job), team)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .where(ProblemRow.hash == spec.problem.content_hash(), Job.preparation.is_not(None))
        .limit(1)
    )
    job = session.scalar(query)
    return None if job is None or job.preparation is None else job.preparation.facts


def _used(session: Session, team: UUID, spec: JobSpec, problem: str | None) -> list[_Use]:
    wall = cast(extract("epoch", Job.finished_at - Job.started_at), Float) - Job.paused_seconds
    query = (
        scoped(select(Job.id, Job.candidates, wall, Job.gpu_seconds, Job.cost_usd), team)
        .where(Job.target == spec.target, Job.agents == spec.agents, Job.state.in_(WHOLE))
        .where(Job.method["name"].astext == spec.method.name)
        .where(Job.candidates > 0)  # 0 where the budget ended before the first one
        # A job that measures a kernel which is there may have one candidate alone.
        .where(or_(Job.candidates > 1, cast(Job.budgets["candidates"].astext, Integer) > 1))
        .order_by(Job.created_at.desc())
        .limit(NEWEST)
    )
    if problem is not None:
        query = query.join(ProblemRow, ProblemRow.id == Job.problem_id).where(ProblemRow.hash == problem)
    rows = session.execute(query).all()
    tokens = _tokens(session, [job for job, *_ in rows])
    return [
        _Use(max(seconds, 0.0) / count, gpu / count, cost / count, tokens.get(job, 0) / count)
        for job, count, seconds, gpu, cost in rows
    ]


def _tokens(session: Session, jobs: Sequence[UUID]) -> dict[UUID, int]:
    """Return tokens of calls that were made, not of answers that were used again."""
    total = func.sum(func.coalesce(LlmCall.prompt_tokens, 0) + func.coalesce(LlmCall.completion_tokens, 0))
    query = select(LlmCall.job_id, total).where(LlmCall.job_id.in_(jobs), ~LlmCall.cached).group_by(LlmCall.job_id)
    return {job: int(count) for job, count in session.execute(query)}
