"""Find kernels that a team's earlier jobs proved, by the pool's entries: of the same problem, and of similar ones.

Of similar ones by similarity alone, as The AI CUDA Engineer has it; what strategies came to is
:mod:`cupilot.storage.pool.search`'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from cupilot.domain.errors import Pruned
from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import PoolEntry, PoolQuestion
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, ProblemRow
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.progress import file_of
from cupilot.storage.pool.similar import Index, similar


@dataclass(frozen=True)
class Solved:
    """A problem of the team and a kernel that holds for it."""

    problem_name: str
    reference: str
    kernel: Kernel
    speedup: float
    insight: str


def nearest_solved(session: Session, index: Index, team: uuid.UUID, question: PoolQuestion, limit: int) -> list[str]:
    """Return the team's fastest entry of each of the problems that are most similar to the question's, those first.

    Of any operator class: similarity decides alone. Not of the problem ``without_problem``, nor of imported files.
    """
    near = similar(session, index, team, question, {}).found
    fastest = (
        select(PoolRow.id, PoolRow.reference_id)
        .where(
            PoolRow.team_id == team, PoolRow.reference_id.in_(list(near)), PoolRow.gain.is_not(None), ~PoolRow.imported
        )
        .where(PoolRow.problem_hash != (question.without_problem or ""))
        .ext(distinct_on(PoolRow.problem_hash))
        .order_by(PoolRow.problem_hash, PoolRow.gain.desc(), PoolRow.id)
    )
    if question.before is not None:
        fastest = fastest.where(PoolRow.created_at < question.before)
    matches = [
        (near[reference].value, str(key)) for key, reference in session.execute(fastest) if reference is not None
    ]
    return [key for _, key in sorted(matches, key=lambda pair: (-pair[0], pair[1]))[:limit]]


@dataclass(frozen=True)
class Proven:
    """A kernel of the team's that was reproduced, and its strategy."""

    strategy: Strategy
    kernel: Kernel


def fastest_proven(
    session: Session, team: uuid.UUID, problem_hash: str, target: Target, device_classes: Collection[str] | None
) -> list[Proven]:
    """Return the team's fastest reproduced kernel of a problem for each class of device; None means all classes.

    Without those that a later measurement refuted, and those whose source is gone.
    """
    later = aliased(PoolRow)
    refuted = (
        select(later.id)
        .where(later.team_id == team, later.problem_hash == problem_hash, later.gain.is_(None))
        .where(later.device_class == PoolRow.device_class, later.measured_at > PoolRow.measured_at)
        .where(later.body["kernel_hash"].astext == PoolRow.body["kernel_hash"].astext)
        .where(func.coalesce(later.failure, "") != FailureKind.INFRASTRUCTURE.value)
        .exists()
    )
    query = (
        select(PoolRow)
        .where(PoolRow.team_id == team, PoolRow.problem_hash == problem_hash, PoolRow.gain.is_not(None), ~refuted)
        .where(~PoolRow.imported, PoolRow.body["verdict"].astext == Verdict.REPRODUCED.value)
        .where(PoolRow.body["target"].astext == target.value)
        .ext(distinct_on(PoolRow.device_class))
        .order_by(PoolRow.device_class, PoolRow.gain.desc(), PoolRow.id)
    )
    if device_classes is not None:
        query = query.where(PoolRow.device_class.in_(device_classes))
    entries = sorted((row.body for row in session.scalars(query)), key=lambda entry: -(entry.speedup or 0.0))
    proven = ((entry.strategy, _source_of(session, entry)) for entry in entries)
    return [Proven(strategy, kernel) for strategy, kernel in proven if kernel is not None]


def _source_of(session: Session, entry: PoolEntry) -> Kernel | None:
    """Return the kernel of an entry; None where its source is gone or is an imported file."""
    if entry.kernel_hash is None:
        return None
    try:
        kernel = file_of(session, entry.kernel_hash)
    except Pruned:
        return None
    return kernel if isinstance(kernel, Kernel) else None


def solved(session: Session, team: str, entries: Sequence[str]) -> list[Solved]:
    """Return the problems that these entries solved, in this order, without those whose kernel or problem is gone."""
    rows = {
        str(row.id): row.body
        for row in session.scalars(
            select(PoolRow).where(
                PoolRow.team_id == uuid.UUID(team), PoolRow.id.in_([uuid.UUID(key) for key in entries])
            )
        )
    }
    problems = (_solved(session, uuid.UUID(team), rows[entry]) for entry in entries if entry in rows)
    return [match for match in problems if match is not None]


def _solved(session: Session, team: uuid.UUID, entry: PoolEntry) -> Solved | None:
    problem = session.scalars(
        select(ProblemRow).where(ProblemRow.team_id == team, ProblemRow.hash == entry.problem_hash)
    ).one_or_none()
    if problem is None or entry.speedup is None:
        return None
    insight = session.scalars(
        select(Candidate.notes["insight"].astext)
        .join(EvaluationRow, EvaluationRow.candidate_id == Candidate.id)
        .where(EvaluationRow.id == uuid.UUID(entry.id))
    ).one_or_none()
    measured = session.get(EvaluationRow, uuid.UUID(entry.id))
    tunables = measured.body.tunables if measured is not None else {}
    kernel = _source_of(session, entry)
    if kernel is None:
        return None
    return Solved(
        problem_name=problem.name,
        reference=problem.source,
        kernel=kernel.tuned(tunables),
        speedup=entry.speedup,
        insight=entry.strategy.rationale if insight is None else insight,
    )
