"""``/v1/jobs/{job}/candidates/{candidate}/measurements``: a kernel's earlier and new measurements."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Response

from api.dependencies import Cursor, Limit, Member, TeamId, Transaction
from api.documentation import errors
from cupilot.jobs import remeasuring
from cupilot.schemas import JobView, MeasurementList
from cupilot.storage.jobs.job_views import job_view
from cupilot.storage.jobs.measurements import MAX_MEASUREMENTS, measurements

router = APIRouter(prefix="/v1/jobs/{job}/candidates/{candidate}", tags=["results"])

IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=200, description="A repeated key answers with the first job."),
]


@router.get("/measurements", summary="A kernel's measurements", responses=errors(401, 404, 422))
def list_measurements(
    *,
    session: Transaction,
    team: TeamId,
    job: UUID,
    candidate: str,
    cursor: Cursor = None,
    limit: Limit = MAX_MEASUREMENTS,
) -> MeasurementList:
    """List every measurement of the candidate's kernel in your team's jobs on this problem, newest first."""
    return measurements(session, team, job, candidate, cursor=cursor, limit=limit)


@router.post(
    "/remeasure",
    status_code=202,
    summary="Measure a kernel again",
    responses={
        **errors(401, 404, 409, 422),
        202: {
            "description": "Accepted: a job that prepares the problem afresh and measures this kernel, nothing else.",
            "headers": {"Location": {"description": "Where to follow it.", "schema": {"type": "string"}}},
        },
    },
)
def remeasure(
    *,
    session: Transaction,
    caller: Member,
    job: UUID,
    candidate: str,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Measure a candidate again on a current device.

    The candidate counts, or is in quarantine and was reviewed by a person. The result stands beside the old one in
    `measurements` and replaces it in the leaderboard. A cluster admin may measure any team's candidate; the job is then
    that team's too.
    """
    made, is_new = remeasuring.remeasure(session, caller, job, candidate, idempotency_key)
    response.headers["Location"] = f"/v1/jobs/{made.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return job_view(session, made.team_id, made.id)
