"""Leaderboards: a team's proven kernels for one problem on one model of device, the fastest first.

Only kernels that count stand here, each once, with the latest measurement of its candidate.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from cupilot.errors import NotFound
from cupilot.evaluation import Baseline, Evaluation, Verdict
from cupilot.schemas import Leaderboard, LeaderboardEntry, LeaderboardList, LeaderboardSummary
from cupilot.storage.tables import Candidate, EvaluationRow, Job, ProblemRow, StrategyRow
from cupilot.storage.views.problems import get_problem
from cupilot.strategy import Strategy

COUNTS = (Verdict.AUDITED, Verdict.REPRODUCED)
_DEVICE = EvaluationRow.body["environment"]["device"]["name"].astext


def list_leaderboards(session: Session, team: UUID, *, after: int, limit: int) -> LeaderboardList:
    """One for each problem and model of device on which the team has a kernel that counts."""
    query = (
        select(
            ProblemRow.hash,
            func.min(ProblemRow.name),
            ProblemRow.policy,
            Job.target,
            _DEVICE.label("device"),
            func.count(EvaluationRow.kernel_hash.distinct()),
            func.max(Candidate.speedup),
        )
        .select_from(Candidate)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Job.team_id == team, Candidate.verdict.in_(COUNTS), Candidate.speedup.is_not(None), _DEVICE.is_not(None))
        .group_by(ProblemRow.hash, ProblemRow.policy, Job.target, _DEVICE)
        .order_by(func.min(ProblemRow.name), ProblemRow.hash, _DEVICE, Job.target)
        .offset(after)
        .limit(limit + 1)
    )
    rows = session.execute(query).all()
    fields = ("problem", "name", "policy", "target", "device", "kernels", "best_speedup")
    return LeaderboardList(
        items=[LeaderboardSummary(**dict(zip(fields, row, strict=True))) for row in rows[:limit]],
        next_after=after + limit if len(rows) > limit else None,
    )


def leaderboard(
    session: Session, team: UUID, problem: str, *, device: str | None, after: int, limit: int
) -> Leaderboard:
    """Of a problem, by hash; NotFound where the team has no kernel that counts for it (on that device)."""
    """Of a problem, by hash or id; NotFound where the team has no kernel that counts for it (on that device)."""
    with suppress(NotFound):
        problem = get_problem(session, team, problem).hash
    device = device or _only_device(session, team, problem)
    ranked = _latest(team, problem, device).subquery()
    query = (
        select(Candidate, EvaluationRow, ProblemRow, StrategyRow.body)
        .join(ranked, (ranked.c.id == Candidate.id) & (ranked.c.place == 1))
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .outerjoin(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .order_by(Candidate.speedup.desc(), Candidate.id)
        .offset(after)
        .limit(limit + 1)
    )
    rows = session.execute(query).all()
    if not rows and after == 0:
        raise _nothing(problem)
    name, policy = (rows[0][2].name, rows[0][2].policy) if rows else _named(session, team, problem)
    return Leaderboard(
        problem=problem,
        name=name,
        policy=policy,
        device=device,
        items=[_entry(after + place, *row) for place, row in enumerate(rows[:limit], 1)],
        next_after=after + limit if len(rows) > limit else None,
    )


def _latest(team: UUID, problem: str, device: str) -> Select[Any]:
    """Candidates that count, with their place among those of the same kernel: the latest measurement is the first."""
    place = func.row_number().over(
        partition_by=EvaluationRow.kernel_hash, order_by=(EvaluationRow.created_at.desc(), EvaluationRow.id)
    )
    return (
        select(Candidate.id, place.label("place"))
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Job.team_id == team, ProblemRow.hash == problem, device == _DEVICE)
        .where(Candidate.verdict.in_(COUNTS), Candidate.speedup.is_not(None))
    )


def _only_device(session: Session, team: UUID, problem: str) -> str:
    query = (
        select(_DEVICE)
        .distinct()
        .select_from(Candidate)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Job.team_id == team, ProblemRow.hash == problem, Candidate.verdict.in_(COUNTS), _DEVICE.is_not(None))
    )
    devices = sorted(session.scalars(query))
    if not devices:
        raise _nothing(problem)
    if len(devices) > 1:
        raise NotFound(
            f"there is one leaderboard for each of {len(devices)} devices",
            hint=f"name the device: {', '.join(devices[:5])}",
            where="query.device",
        )
    return str(devices[0])


def _named(session: Session, team: UUID, problem: str) -> tuple[str, Any]:
    row = session.scalars(select(ProblemRow).where(ProblemRow.team_id == team, ProblemRow.hash == problem)).one()
    return row.name, row.policy


def _entry(
    rank: int, candidate: Candidate, row: EvaluationRow, problem: ProblemRow, strategy: dict[str, Any] | None
) -> LeaderboardEntry:
    del problem
    evaluation = Evaluation.model_validate(row.body)
    eager, compiled = evaluation.comparison(), evaluation.comparison(Baseline.COMPILE)
    assert eager is not None
    return LeaderboardEntry(
        rank=rank,
        job=candidate.job_id,
        candidate=candidate.id,
        ordinal=candidate.ordinal,
        kernel=row.kernel_hash,
        verdict=evaluation.verdict,
        speedup=eager.speedup,
        speedup_over_compile=compiled.speedup if compiled else None,
        kernel_us=eager.kernel_us,
        techniques=list(Strategy.model_validate(strategy).ids()) if strategy else [],
        driver=evaluation.environment.driver if evaluation.environment else None,
        torch=evaluation.environment.torch if evaluation.environment else None,
        measured_at=row.created_at,
    )


def _nothing(problem: str) -> NotFound:
    return NotFound(
        f"no kernel of your team counts for problem {problem[:80]!r} there",
        hint="GET /v1/leaderboards lists what there is",
        where="problem",
    )
