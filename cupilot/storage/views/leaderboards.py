"""Leaderboards: proven kernels for one problem on one model of device, the fastest first.

Only kernels that count stand here, each once, with the latest measurement of its candidate; no imported files, whose
policy cannot be read from machine code and whose times hold a copy. A team sees its own, and
what other teams have opened to all (:attr:`cupilot.pool.Sharing.OPEN`): of those the numbers and the techniques, never
whose they are, the source, or the job. A cluster admin may look at everybody's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, func, or_, select, true
from sqlalchemy.orm import Session, aliased

from cupilot.errors import NotFound
from cupilot.evaluation import Baseline, Evaluation, Verdict
from cupilot.imported import KernelKind
from cupilot.pool import Sharing
from cupilot.schemas import Leaderboard, LeaderboardEntry, LeaderboardList, LeaderboardSummary
from cupilot.storage.pool_tables import PoolRow
from cupilot.storage.tables import Candidate, EvaluationRow, Job, ProblemRow, StrategyRow, Team
from cupilot.storage.views.problems import get_problem
from cupilot.strategy import Strategy

COUNTS = (Verdict.AUDITED, Verdict.REPRODUCED)
_KIND = EvaluationRow.body["kernel_kind"].astext
_DEVICE = EvaluationRow.body["environment"]["device"]["name"].astext


@dataclass(frozen=True)
class Onlooker:
    """Whose eyes see a board."""

    team: UUID
    everything: bool = False
    """Whether every team's kernels are shown, with their teams: for cluster admins."""

    def sees(self) -> ColumnElement[bool]:
        """Of candidates joined with their jobs: which may be shown."""
        if self.everything:
            return true()
        measured = aliased(EvaluationRow)
        opened = (
            select(PoolRow.id)
            .join(measured, measured.id == PoolRow.id)
            .where(measured.candidate_id == Candidate.id, PoolRow.sharing == Sharing.OPEN.value)
        )
        return or_(Job.team_id == self.team, opened.exists())

    def place(self) -> ColumnElement[int]:
        """A candidate's place among those of the same kernel, of which the first is shown: one's own, then the latest.

        Who sees everything sees each team's.
        """
        by_team = [Job.team_id] if self.everything else []
        own_first = (Job.team_id == self.team).desc()
        latest = EvaluationRow.created_at.desc()
        return func.row_number().over(
            partition_by=[EvaluationRow.kernel_hash, *by_team], order_by=[own_first, latest, EvaluationRow.id]
        )


def list_leaderboards(session: Session, onlooker: Onlooker, *, after: int, limit: int) -> LeaderboardList:
    """One for each problem and model of device on which there is a kernel that counts and may be seen."""
    query = (
        _counting(
            ProblemRow.hash,
            func.min(ProblemRow.name),
            ProblemRow.policy,
            Job.target,
            _DEVICE.label("device"),
            func.count(EvaluationRow.kernel_hash.distinct()),
            func.max(Candidate.speedup),
        )
        .where(onlooker.sees())
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
    session: Session, onlooker: Onlooker, problem: str, *, device: str | None, after: int, limit: int
) -> Leaderboard:
    """Of a problem, by hash or id; NotFound where no kernel that may be seen counts for it (on that device)."""
    with suppress(NotFound):
        problem = get_problem(session, onlooker.team, problem).hash
    device, name, policy = _board(session, onlooker, problem, device)
    ranked = (
        _counting(Candidate.id, onlooker.place().label("place"))
        .where(onlooker.sees(), ProblemRow.hash == problem, device == _DEVICE)
        .subquery()
    )
    query = (
        select(Candidate, EvaluationRow, Team, StrategyRow.body)
        .join(ranked, (ranked.c.id == Candidate.id) & (ranked.c.place == 1))
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .join(Job, Job.id == Candidate.job_id)
        .join(Team, Team.id == Job.team_id)
        .outerjoin(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .order_by(Candidate.speedup.desc(), Candidate.id)
        .offset(after)
        .limit(limit + 1)
    )
    rows = session.execute(query).all()
    return Leaderboard(
        problem=problem,
        name=name,
        policy=policy,
        device=device,
        items=[_entry(onlooker, after + place, row) for place, row in enumerate(rows[:limit], 1)],
        next_after=after + limit if len(rows) > limit else None,
    )


def _counting(*columns: Any) -> Select[Any]:
    """Of candidates that count, joined with job, problem and the evaluation by which they count."""
    return (
        select(*columns)
        .select_from(Candidate)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Candidate.verdict.in_(COUNTS), Candidate.speedup.is_not(None), _DEVICE.is_not(None))
        .where(func.coalesce(_KIND, "") != KernelKind.IMPORTED.value)
    )


def _board(session: Session, onlooker: Onlooker, problem: str, device: str | None) -> tuple[str, str, Any]:
    """Device, the problem's name (one's own, where one has it) and policy of the board that is meant."""
    own = func.bool_or(ProblemRow.team_id == onlooker.team)
    query = (
        _counting(_DEVICE, ProblemRow.name, ProblemRow.policy)
        .where(onlooker.sees(), ProblemRow.hash == problem)
        .group_by(_DEVICE, ProblemRow.name, ProblemRow.policy)
        .order_by(own.desc(), ProblemRow.name)
    )
    rows = [row for row in session.execute(query) if device in (None, row[0])]
    devices = sorted({row[0] for row in rows})
    if not devices:
        raise NotFound(
            f"no kernel that you may see counts for problem {problem[:80]!r} there",
            hint="GET /v1/leaderboards lists what there is",
            where="problem",
        )
    if len(devices) > 1:
        raise NotFound(
            f"there is one leaderboard for each of {len(devices)} devices",
            hint=f"name the device: {', '.join(devices[:5])}",
            where="query.device",
        )
    return devices[0], rows[0][1], rows[0][2]


def _entry(
    onlooker: Onlooker, rank: int, found: Row[Candidate, EvaluationRow, Team, dict[str, Any]]
) -> LeaderboardEntry:
    candidate, row, team, strategy = found
    evaluation = Evaluation.model_validate(row.body)
    eager, compiled = evaluation.comparison(), evaluation.comparison(Baseline.COMPILE)
    assert eager is not None
    own = team.id == onlooker.team
    told = own or onlooker.everything
    return LeaderboardEntry(
        rank=rank,
        own=own,
        team=team.name if told else None,
        job=candidate.job_id if told else None,
        candidate=candidate.id if told else None,
        ordinal=candidate.ordinal if told else None,
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
