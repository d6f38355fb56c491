"""Count a job's failures: of its candidates and of its model calls.

Words are the workers' business.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from cupilot.domain.states import CandidateState, LlmCallState
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.db.tables.models import LlmCall


@dataclass(frozen=True)
class Failures:
    """Counts of a job's failures."""

    candidates: tuple[tuple[str, int], ...]
    """Why candidates came to nothing, e.g. ``compile_error``, ``bad_model_answer``, with how many; most first."""
    calls: int
    """Model calls."""
    unusable: int
    """Of these, answers that could not be used."""
    unanswered: int
    """Of these, without an answer."""
    complaint: str | None
    """The most frequent of what was wrong with an answer, or of why none came."""


def failures_of(session: Session, job: Job) -> Failures:
    """Count the job's failures."""
    kind = func.coalesce(EvaluationRow.body["failure"]["kind"].astext, Candidate.reason)
    failed = (
        select(kind, func.count())
        .select_from(Candidate)
        .outerjoin(EvaluationRow, EvaluationRow.id == Candidate.evaluation_id)
        .where(Candidate.job_id == job.id, Candidate.state != CandidateState.ACTIVE, kind.is_not(None))
        .group_by(kind)
        .order_by(func.count().desc(), kind)
    )
    unanswered = LlmCall.state.in_((LlmCallState.FAILED, LlmCallState.LOST))
    counted = select(func.count(), func.count(LlmCall.complaint), func.count().filter(unanswered))
    calls, unusable, silent = session.execute(counted.where(LlmCall.job_id == job.id)).one()
    what = case((unanswered, LlmCall.response["error"].astext), else_=LlmCall.complaint)
    common = (
        select(what)
        .where(LlmCall.job_id == job.id, what.is_not(None))
        .group_by(what)
        .order_by(func.count().desc(), what)
        .limit(1)
    )
    candidates = tuple((str(name), int(count)) for name, count in session.execute(failed))
    return Failures(candidates, calls, unusable, silent, session.scalars(common).one_or_none())
