"""Find kernels that a team's earlier jobs proved, with their problems, by the pool's entries.

By similarity alone, as The AI CUDA Engineer has it; what strategies came to is :mod:`cupilot.storage.pool.search`'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import PoolEntry, PoolQuestion
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
    if problem is None or entry.kernel_hash is None or entry.speedup is None:
        return None
    insight = session.scalars(
        select(Candidate.notes["insight"].astext)
        .join(EvaluationRow, EvaluationRow.candidate_id == Candidate.id)
        .where(EvaluationRow.id == uuid.UUID(entry.id))
    ).one_or_none()
    measured = session.get(EvaluationRow, uuid.UUID(entry.id))
    tunables = measured.body.tunables if measured is not None else {}
    kernel = file_of(session, entry.kernel_hash)
    if isinstance(kernel, ImportedKernel):
        return None
    return Solved(
        problem_name=problem.name,
        reference=problem.source,
        kernel=kernel.tuned(tunables),
        speedup=entry.speedup,
        insight=entry.strategy.rationale if insight is None else insight,
    )
