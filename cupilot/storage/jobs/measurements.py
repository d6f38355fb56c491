"""List all measurements of a kernel on a problem: the first, the confirmation, and later ones."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict
from cupilot.domain.evaluation import Baseline, Verdict
from cupilot.domain.states import EvaluationPurpose
from cupilot.schemas import Measurement, MeasurementList
from cupilot.storage.db.cursor import cut, decode_cursor, encode_cursor
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.jobs.candidate_views import find_candidate
from cupilot.storage.jobs.jobs import get_job, problem_of

MAX_MEASUREMENTS = 200
"""Of a page; a kernel that is measured daily fills it in half a year."""


class NothingToMeasure(Conflict):
    """The candidate has no kernel that is worth another measurement."""

    code = "not_proven"


def check_measurable(candidate: Candidate) -> None:
    """Raise :class:`NothingToMeasure` for a candidate that neither counts nor waits in quarantine."""
    verdict = candidate.verdict
    judged = verdict is not None and (verdict.counts or verdict is Verdict.QUARANTINED)
    if candidate.kernel_hash is None or not judged:
        standing = verdict.value if verdict else candidate.state.value
        raise NothingToMeasure(
            f"candidate {candidate.ordinal} is {standing}: it is not a result",
            hint="audited and reproduced kernels are measured again, and quarantined ones",
            where="candidate",
        )


def measurements(
    session: Session, team: UUID, job: UUID, reference: str, *, cursor: str | None = None, limit: int = MAX_MEASUREMENTS
) -> MeasurementList:
    """Return what was measured of a candidate's kernel in any of the team's jobs on its problem, the newest first."""
    candidate = find_candidate(session, team, job, reference)
    problem = problem_of(session, get_job(session, team, job))
    rows: Sequence[EvaluationRow] = []
    following = None
    if candidate.kernel_hash is not None:
        query = (
            select(EvaluationRow)
            .join(Job, Job.id == EvaluationRow.job_id)
            .where(Job.team_id == team, EvaluationRow.kernel_hash == candidate.kernel_hash)
            .where(EvaluationRow.problem_hash == problem.hash)
            .where(EvaluationRow.purpose != EvaluationPurpose.ATTRIBUTE)
            .order_by(EvaluationRow.created_at.desc(), EvaluationRow.id.desc())
            .limit(limit + 1)
        )
        if cursor is not None:
            place = tuple_(EvaluationRow.created_at, EvaluationRow.id)
            query = query.where(place < decode_cursor(cursor, "measurements"))
        rows, following = cut(
            session.scalars(query).all(), limit, lambda row: encode_cursor(row.created_at, row.id, "measurements")
        )
    return MeasurementList(
        kernel=candidate.kernel_hash,
        items=[_measurement(row) for row in rows],
        next_cursor=following,
    )


def _measurement(row: EvaluationRow) -> Measurement:
    evaluation = row.body
    eager, compiled = evaluation.comparison(), evaluation.comparison(Baseline.COMPILE)
    environment, counts = evaluation.environment, evaluation.verdict.counts
    return Measurement(
        job=row.job_id,
        candidate=row.candidate_id,
        purpose=row.purpose.value,
        verdict=evaluation.verdict,
        speedup=eager.speedup if eager and counts else None,
        speedup_over_compile=compiled.speedup if compiled and counts else None,
        kernel_us=eager.kernel_us if eager else None,
        device=environment.device.name if environment else None,
        device_uid=environment.device.uid if environment else None,
        driver=environment.driver if environment else None,
        torch=environment.torch if environment else None,
        measured_at=row.created_at,
    )
