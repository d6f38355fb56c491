"""The winner of a job with all its evidence."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.orm import Session

from cupilot.errors import NotFound
from cupilot.evaluation import Preparation
from cupilot.report import headline, next_steps
from cupilot.schemas import JobView, Report
from cupilot.storage.jobs import get_job
from cupilot.storage.views.candidates import candidate_view
from cupilot.storage.views.jobs import job_view
from cupilot.storage.views.problems import problem_view


class NoResult(NotFound):
    """The job has no proven kernel, or not yet."""

    code = "no_result"


def report(session: Session, team: UUID, job_id: UUID) -> Report:
    """The best proven kernel so far; NoResult while there is none, NotFound for another team's job."""
    job = job_view(session, team, job_id)
    if job.best is None:
        raise _no_result(job)
    candidate = candidate_view(session, team, job_id, str(job.best.candidate))
    assert candidate.evaluation is not None
    return Report(
        job=job,
        problem=problem_view(session, team, str(job.problem.id)),
        candidate=candidate,
        preparation=Preparation.model_validate(get_job(session, team, job_id).preparation),
        headline=headline(candidate.evaluation, job.best.verdict, final=job.final),
        next_steps=next_steps(job, candidate.evaluation),
    )


def _no_result(job: JobView) -> NoResult:
    if not job.final:
        return NoResult("no kernel of this job is proven yet", hint="ask again while the job runs")
    reason = f" ({job.reason})" if job.reason else ""
    hint = "the candidates say why each was rejected" if job.candidates else None
    return NoResult(
        f"the job ended as {job.state}{reason} without a proven kernel",
        hint=job.message or hint,
    )
