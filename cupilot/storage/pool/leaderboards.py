"""Leaderboards: proven kernels for one problem on one model of device, reproduced ones first, then the fastest.

Only kernels that count stand here, each once, with the latest measurement that reproduced it, else its latest; and none
that its team has measured since without that it counted; no imported files, whose policy cannot be read from machine
code and whose times hold a copy; no problems that tell too little about their kernels (fewer than three input laws, or
a reference bound by the host).
A team sees its own, and of built-in problems what other teams have opened to all
(:attr:`cupilot.domain.pool.Sharing.OPEN`): of those the numbers and the techniques, never whose they are, the source,
or the job. What another team measured on a reference of its own it never sees, not even where it submitted the same
text. A cluster admin may look at everybody's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Integer, Row, Subquery, Text, and_, cast, func, or_, select, true, tuple_
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session, aliased

from cupilot.domain import problems
from cupilot.domain.caveats import FEWEST_LAWS, UNCOUNTED_LAW
from cupilot.domain.errors import NotFound
from cupilot.domain.evaluation import Baseline, FailureKind, Verdict
from cupilot.domain.imported import KernelKind
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import NumericsPolicy
from cupilot.domain.states import EvaluationPurpose
from cupilot.domain.strategy import Strategy
from cupilot.schemas import Leaderboard, LeaderboardEntry, LeaderboardList, LeaderboardSummary
from cupilot.storage.db.cursor import cut, decode_key, encode_key, identifier
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job, ProblemRow, StrategyRow
from cupilot.storage.db.tables.people import Team
from cupilot.storage.db.tables.pool import BuiltinProblem, PoolRow
from cupilot.storage.jobs.problems import get_problem
from cupilot.storage.pool.references import shown_to_all

COUNTS = (Verdict.AUDITED, Verdict.REPRODUCED)
OWN_KERNEL = (EvaluationPurpose.EVALUATE, EvaluationPurpose.CONFIRM)
"""Of measurements: those of the candidate's own kernel."""
_KIND = EvaluationRow.body["kernel_kind"].astext
_CONFIRMED = cast(Candidate.verdict == Verdict.REPRODUCED, Integer)
_DEVICE = EvaluationRow.body["environment"]["device"]["name"].astext


@dataclass(frozen=True)
class BoardViewer:
    """Reader of a board: a team, or whoever may see all."""

    team: UUID
    everything: bool = False
    """True if every team's kernels are shown, with their teams: for cluster admins."""

    def sees(self) -> ColumnElement[bool]:
        """Return the condition that a candidate, joined with its job and problem, may be shown."""
        if self.everything:
            return true()
        measured = aliased(EvaluationRow)
        opened = (
            select(PoolRow.id)
            .join(measured, measured.id == PoolRow.id)
            .where(measured.candidate_id == Candidate.id, PoolRow.problem_hash == ProblemRow.hash)
            .where(PoolRow.sharing == Sharing.OPEN.value, shown_to_all())
        )
        return or_(Job.team_id == self.team, opened.exists())

    def name(self, board: Any) -> ColumnElement[str]:
        """Return the team's own name for a board's problem, else the shipped one, else any team's (if it sees all)."""
        own = func.min(board.name).filter(board.team == self.team)
        return func.coalesce(own, func.min(board.builtin), func.min(board.name))

    def place(self) -> ColumnElement[int]:
        """Rank candidates of the same kernel on a board, of which the first is shown: the viewer's own, then one that
        was reproduced, then the latest.

        Who sees everything sees each team's.
        """
        board = [ProblemRow.hash, Job.target, _DEVICE]
        by_team = [Job.team_id] if self.everything else []
        own_first = (Job.team_id == self.team).desc()
        latest = EvaluationRow.created_at.desc()
        return func.row_number().over(
            partition_by=[*board, EvaluationRow.kernel_hash, *by_team],
            order_by=[own_first, _CONFIRMED.desc(), latest, EvaluationRow.id],
        )


def list_leaderboards(
    session: Session, viewer: BoardViewer, *, cursor: str | None = None, after: int = 0, limit: int
) -> LeaderboardList:
    """Return a board for each problem and device model with a visible kernel that counts, by name; behind
    ``cursor``, or after the first ``after``."""
    standing = _standing(viewer).c
    name, target = viewer.name(standing), cast(standing.target, Text)
    place = func.row_number().over(order_by=(name, standing.problem, standing.device, target))
    boards = (
        select(
            standing.problem,
            name.label("name"),
            standing.policy,
            standing.target,
            standing.device,
            func.count(standing.kernel.distinct()).label("kernels"),
            func.coalesce(func.max(standing.speedup).filter(standing.confirmed == 1), func.max(standing.speedup)).label(
                "best_speedup"
            ),
            func.min(standing.builtin).label("builtin"),
            target.label("target_name"),
            place.label("place"),
        )
        .group_by(standing.problem, standing.policy, standing.target, standing.device)
        .subquery()
    )
    key = (boards.c.name, boards.c.problem, boards.c.device, boards.c.target_name)
    query = select(boards).where(boards.c.place > after).order_by(boards.c.place).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(*key) > decode_key(cursor, "leaderboards", str, str, str, str))
    listed = session.execute(query).all()
    rows, following = cut(
        listed, limit, lambda row: encode_key("leaderboards", row.name, row.problem, row.device, row.target_name)
    )
    fields = ("problem", "name", "policy", "target", "device", "kernels", "best_speedup")
    return LeaderboardList(
        items=[
            LeaderboardSummary(
                **{field: getattr(row, field) for field in fields}, builtin=_is_builtin(row.problem, row.builtin)
            )
            for row in rows
        ],
        next_cursor=following,
        next_after=rows[-1].place if following else None,
    )


def leaderboard(
    session: Session,
    viewer: BoardViewer,
    problem: str,
    *,
    device: str | None,
    cursor: str | None = None,
    after: int = 0,
    limit: int,
) -> Leaderboard:
    """Return the board of a problem, by hash or id, behind ``cursor`` or the place ``after``.

    NotFound where no kernel that may be seen counts for it (on that device).
    """
    with suppress(NotFound):
        problem = get_problem(session, viewer.team, problem).hash
    device, name, policy, builtin = _board(session, viewer, problem, device)
    standing = _standing(viewer).c
    # Not by candidate: a kernel that is measured again keeps its place, unless it is faster or slower now.
    rank = func.row_number().over(
        order_by=(standing.confirmed.desc(), standing.speedup.desc(), standing.kernel, standing.owner)
    )
    ranked = (
        select(standing.id, standing.confirmed, standing.speedup, standing.kernel, standing.owner, rank.label("rank"))
        .where(standing.problem == problem, standing.device == device)
        .subquery()
    )
    query = (
        select(ranked.c.rank, Candidate, EvaluationRow, Team, StrategyRow.body)
        .join(Candidate, Candidate.id == ranked.c.id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .join(Job, Job.id == Candidate.job_id)
        .join(Team, Team.id == Job.team_id)
        .outerjoin(StrategyRow, StrategyRow.id == func.coalesce(Candidate.aligned_strategy_id, Candidate.strategy_id))
        .where(ranked.c.rank > after)
        .order_by(ranked.c.rank)
        .limit(limit + 1)
    )
    if cursor is not None:
        confirmed, speedup, kernel, owner = decode_key(cursor, "leaderboard", int, float, str, str)
        later = tuple_(ranked.c.kernel, ranked.c.owner) > (kernel, identifier(owner))
        slower = or_(ranked.c.speedup < speedup, and_(ranked.c.speedup == speedup, later))
        query = query.where(or_(ranked.c.confirmed < confirmed, and_(ranked.c.confirmed == confirmed, slower)))
    rows, following = cut(
        session.execute(query).all(),
        limit,
        lambda row: encode_key(
            "leaderboard", int(row[1].verdict is Verdict.REPRODUCED), row[1].speedup, row[2].kernel_hash, str(row[3].id)
        ),
    )
    return Leaderboard(
        problem=problem,
        name=name,
        policy=policy,
        builtin=_is_builtin(problem, builtin),
        device=device,
        items=[_entry(viewer, row) for row in rows],
        next_cursor=following,
        next_after=rows[-1][0] if following else None,
    )


def _standing(viewer: BoardViewer) -> Subquery:
    """Return, for every kernel on every visible board, the candidate by which it stands there."""
    ranked = (
        select(
            Candidate.id,
            Candidate.speedup,
            _CONFIRMED.label("confirmed"),
            EvaluationRow.kernel_hash.label("kernel"),
            ProblemRow.hash.label("problem"),
            ProblemRow.name,
            ProblemRow.policy,
            ProblemRow.team_id.label("team"),
            BuiltinProblem.name.label("builtin"),
            Job.team_id.label("owner"),
            Job.target,
            _DEVICE.label("device"),
            viewer.place().label("place"),
        )
        .select_from(Candidate)
        .join(Job, Job.id == Candidate.job_id)
        .join(ProblemRow, ProblemRow.id == Job.problem_id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .outerjoin(BuiltinProblem, BuiltinProblem.hash == ProblemRow.hash)
        .where(Candidate.verdict.in_(COUNTS), Candidate.speedup.is_not(None), _DEVICE.is_not(None))
        .where(func.coalesce(_KIND, "") != KernelKind.IMPORTED.value)
        .where(_is_ranked(), viewer.sees(), ~_refuted())
        .subquery()
    )
    return select(ranked).where(ranked.c.place == 1).subquery()


def _is_ranked() -> ColumnElement[bool]:
    """Return whether the job's problem tells enough about its kernels (:attr:`Preparation.warnings`)."""
    counted = f'$.laws[*] ? (!(@ starts with "{UNCOUNTED_LAW}"))'
    laws = func.jsonb_array_length(func.jsonb_path_query_array(Job.preparation, cast(counted, JSONPATH)))
    host_bound = func.coalesce(Job.preparation["host_bound"].astext, "false")
    few = f"@.laws.size() < {FEWEST_LAWS}"
    with_uncounted = f'@.laws.size() == {FEWEST_LAWS} && exists(@.laws[*] ? (@ starts with "{UNCOUNTED_LAW}"))'
    few_at_a_workload = func.jsonb_path_exists(
        Job.preparation, cast(f"$.workloads[*] ? ({few} || ({with_uncounted}))", JSONPATH)
    )
    return and_(func.coalesce(laws, 0) >= FEWEST_LAWS, host_bound != "true", ~few_at_a_workload)


def _refuted() -> ColumnElement[bool]:
    """Return whether the same team measured the same kernel on that device since, and it did not count.

    Other teams' measurements say nothing here: a board would show that there are some.
    """
    later, job = aliased(EvaluationRow), aliased(Job)
    failure = func.coalesce(later.body["failure"]["kind"].astext, "")
    return (
        select(later.id)
        .join(job, job.id == later.job_id)
        .where(
            later.kernel_hash == EvaluationRow.kernel_hash,
            later.problem_hash == EvaluationRow.problem_hash,
            later.created_at > EvaluationRow.created_at,
            later.purpose.in_(OWN_KERNEL),
            later.verdict.not_in(COUNTS),
            job.team_id == Job.team_id,
            later.body["environment"]["device"]["name"].astext == _DEVICE,
            failure != FailureKind.INFRASTRUCTURE.value,
        )
        .exists()
    )


def _is_builtin(problem_hash: str, recorded: str | None) -> bool:
    """Return whether a version of this service ships the problem; ``recorded`` is its name where that is on record."""
    return recorded is not None or problems.name_of(problem_hash) is not None


def _board(
    session: Session, viewer: BoardViewer, problem: str, device: str | None
) -> tuple[str, str, NumericsPolicy, str | None]:
    """Return device, name, policy and built-in name of the problem of the board that is meant."""
    standing = _standing(viewer).c
    query = (
        select(standing.device, viewer.name(standing), standing.policy, func.min(standing.builtin))
        .where(standing.problem == problem)
        .group_by(standing.device, standing.policy)
    )
    rows = [row for row in session.execute(query) if device in (None, row[0])]
    devices = sorted({row[0] for row in rows})
    if not devices:
        raise NotFound(
            f"there is no proven kernel that you may see for problem {problem[:80]!r} on that device",
            hint="GET /v1/leaderboards, or cupilot leaderboard, lists all",
            where="problem",
        )
    if len(devices) > 1:
        raise NotFound(
            f"the problem has one leaderboard for each of {len(devices)} devices",
            hint=f"name the device: {', '.join(devices[:5])}",
            where="query.device",
        )
    _, name, policy, builtin = rows[0]
    return devices[0], name, policy, builtin


def _entry(viewer: BoardViewer, ranked: Row[int, Candidate, EvaluationRow, Team, Strategy]) -> LeaderboardEntry:
    rank, candidate, row, team, strategy = ranked
    evaluation = row.body
    eager, compiled = evaluation.comparison(), evaluation.comparison(Baseline.COMPILE)
    assert eager is not None
    own = team.id == viewer.team
    is_named = own or viewer.everything
    return LeaderboardEntry(
        rank=rank,
        own=own,
        team=team.name if is_named else None,
        job=candidate.job_id if is_named else None,
        candidate=candidate.id if is_named else None,
        ordinal=candidate.ordinal if is_named else None,
        kernel=row.kernel_hash,
        verdict=evaluation.verdict,
        speedup=eager.speedup,
        speedup_over_compile=compiled.speedup if compiled else None,
        kernel_us=eager.kernel_us,
        techniques=list(strategy.ids()) if strategy else [],
        driver=evaluation.environment.driver if evaluation.environment else None,
        torch=evaluation.environment.torch if evaluation.environment else None,
        measured_at=row.created_at,
    )
