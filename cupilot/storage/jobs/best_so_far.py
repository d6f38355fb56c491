"""Read how the highest median speedup of jobs rose, one point an improvement; for sparklines and charts.

A job's best is chosen by verdict and lower bound (:func:`cupilot.storage.jobs.progress.best_first`), and may be
another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Subquery, func, or_, select
from sqlalchemy.orm import Session

from cupilot.domain.evaluation import Evaluation, Verdict
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow
from cupilot.storage.jobs.jobs import get_job


@dataclass(frozen=True)
class Improvement:
    """Candidate whose median speedup is above those of all before it in its job."""

    ordinal: int
    verdict: Verdict
    evaluation: Evaluation


def risen(session: Session, jobs: Sequence[UUID]) -> dict[UUID, list[tuple[float, float]]]:
    """Return (ordinal, speedup) of each improvement, by job; jobs without a kernel that counts have no entry.

    The jobs are ones that the caller has listed for its team.
    """
    best = _improvements(jobs)
    points: dict[UUID, list[tuple[float, float]]] = defaultdict(list)
    query = select(best.c.job_id, best.c.ordinal, best.c.speedup).order_by(best.c.job_id, best.c.ordinal)
    for job, ordinal, speedup in session.execute(query):
        points[job].append((float(ordinal), speedup))
    return dict(points)


def improvements(session: Session, team: UUID, job_id: UUID, limit: int) -> list[Improvement]:
    """Return a job's improvements with their evaluations, in the order in which they were made: the last ``limit``."""
    best = _improvements([get_job(session, team, job_id).id])
    query = (
        select(Candidate.ordinal, Candidate.verdict, EvaluationRow.body)
        .join(best, best.c.id == Candidate.id)
        .join(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .order_by(Candidate.ordinal.desc())
        .limit(limit)
    )
    rows = session.execute(query).all()
    return [Improvement(ordinal, verdict, body) for ordinal, verdict, body in reversed(rows) if verdict is not None]


def _improvements(jobs: Sequence[UUID]) -> Subquery:
    before = func.max(Candidate.speedup).over(
        partition_by=Candidate.job_id, order_by=Candidate.ordinal, rows=(None, -1)
    )
    measured = (
        select(Candidate.id, Candidate.job_id, Candidate.ordinal, Candidate.speedup, before.label("before"))
        .where(Candidate.job_id.in_(jobs), Candidate.speedup.is_not(None))
        .subquery()
    )
    improved = or_(measured.c.before.is_(None), measured.c.speedup > measured.c.before)
    return select(measured.c.id, measured.c.job_id, measured.c.ordinal, measured.c.speedup).where(improved).subquery()
