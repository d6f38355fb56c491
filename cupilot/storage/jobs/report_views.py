"""The winner of a job with all its evidence."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, NotFound
from cupilot.reports.job import headline, next_steps
from cupilot.schemas import CandidateView, GenerationPoint, JobView, Report
from cupilot.storage.db.tables.jobs import Candidate, Generation
from cupilot.storage.jobs.candidate_views import candidate_view
from cupilot.storage.jobs.job_views import job_view
from cupilot.storage.jobs.jobs import get_job
from cupilot.storage.jobs.problems import problem_view
from cupilot.storage.jobs.progress import preparation_of


class NoResult(NotFound):
    """The job has no proven kernel, or not yet."""

    code = "no_result"


class NotProven(Conflict):
    """The candidate does not count as a result."""

    code = "not_proven"


def report(session: Session, team: UUID, job_id: UUID) -> Report:
    """Return the best proven kernel so far; NoResult while there is none, NotFound for another team's job."""
    job = job_view(session, team, job_id)
    if job.best is None:
        raise _no_result(job)
    return _of(session, team, job, candidate_view(session, team, job_id, str(job.best.candidate)))


def report_on(session: Session, team: UUID, job_id: UUID, reference: str) -> Report:
    """Return the report of another candidate, by id or ordinal; :class:`NotProven` where it does not count."""
    job = job_view(session, team, job_id)
    return _of(session, team, job, candidate_view(session, team, job_id, reference))


def _of(session: Session, team: UUID, job: JobView, candidate: CandidateView) -> Report:
    evaluation, verdict = candidate.evaluation, candidate.verdict
    if evaluation is None or verdict is None or not verdict.counts:
        raise NotProven(
            f"candidate {candidate.ordinal} is {verdict.value if verdict else candidate.state}: it is not a result",
            hint="only audited and reproduced kernels count as results",
            where="candidate",
        )
    return Report(
        job=job,
        problem=problem_view(session, team, str(job.problem.id)),
        candidate=candidate,
        preparation=preparation_of(get_job(session, team, job.id)),
        headline=headline(evaluation, verdict, final=job.final),
        next_steps=next_steps(job, evaluation),
        trajectory=trajectory(session, job.id),
    )


def trajectory(session: Session, job: UUID) -> list[GenerationPoint]:
    """Return what each generation of a job came to, the first one first."""
    query = (
        select(Generation.number, func.count(), func.count(Candidate.speedup), func.max(Candidate.speedup))
        .join(Candidate, Candidate.generation_id == Generation.id)
        .where(Generation.job_id == job)
        .group_by(Generation.number)
        .order_by(Generation.number)
    )
    points: list[GenerationPoint] = []
    best: float | None = None
    for number, candidates, counting, speedup in session.execute(query):
        best = max((value for value in (best, speedup) if value is not None), default=None)
        points.append(
            GenerationPoint(
                generation=number + 1, candidates=candidates, counting=counting, speedup=speedup, best_so_far=best
            )
        )
    return points


def _no_result(job: JobView) -> NoResult:
    if not job.final:
        return NoResult("no kernel of this job is proven yet", hint="ask again while the job runs")
    reason = f" ({job.reason})" if job.reason else ""
    hint = "the candidates say why each was rejected" if job.candidates else None
    return NoResult(
        f"the job ended as {job.state}{reason} without a proven kernel",
        hint=job.message or hint,
    )
