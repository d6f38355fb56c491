"""Two candidates by reference, for :mod:`cupilot.reports.comparison`."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, NotFound, Pruned
from cupilot.reports.comparison import compare
from cupilot.schemas import CandidateComparison, CandidateView
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.jobs.candidate_views import candidate_view
from cupilot.storage.jobs.jobs import get_job, problem_of


class NotComparable(Conflict):
    """The candidates are for different problems."""

    code = "not_comparable"


def compare_candidates(session: Session, team: UUID, first: str, second: str) -> CandidateComparison:
    """Compare two candidates, each by id, ``job:ordinal`` or, for a job's best, its id; NotFound for another team's."""
    sides = [_find(session, team, reference, where) for reference, where in ((first, "first"), (second, "second"))]
    problem, other = (problem_of(session, get_job(session, team, side.job)) for side in sides)
    if problem.hash != other.hash:
        raise NotComparable(
            f"they are for different problems: {problem.name!r} ({problem.policy.value})"
            f" and {other.name!r} ({other.policy.value})",
            hint="candidates are compared within one problem and numerics policy",
        )
    for side in sides:
        if side.kernel is not None and side.kernel.pruned_at is not None:
            raise Pruned(f"the source of candidate {side.ordinal}", side.kernel.pruned_at)
    return compare(*sides)


def _find(session: Session, team: UUID, reference: str, where: str) -> CandidateView:
    job, colon, ordinal = reference.partition(":")
    try:
        key = UUID(job)
    except ValueError:
        raise _not_found(reference, where) from None
    if colon:
        return candidate_view(session, team, key, ordinal, with_lineage=False)
    whole = session.scalars(scoped(select(Job), team).where(Job.id == key)).one_or_none()
    if whole is not None:
        if whole.best_candidate_id is None:
            raise NotFound("that job has no proven kernel yet", hint="name a candidate: job:ordinal", where=where)
        return candidate_view(session, team, key, str(whole.best_candidate_id), with_lineage=False)
    candidate = session.scalars(scoped(select(Candidate), team).where(Candidate.id == key)).one_or_none()
    if candidate is None:
        raise _not_found(reference, where)
    return candidate_view(session, team, candidate.job_id, str(key), with_lineage=False)


def _not_found(reference: str, where: str) -> NotFound:
    hint = "give a candidate's id, job:ordinal, or a job's id"
    return NotFound(f"no job or candidate {reference[:100]!r}", hint=hint, where=where)
