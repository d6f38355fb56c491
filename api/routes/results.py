"""``/v1/jobs/{job}/candidates`` and ``/best``: a job's candidates and its best kernel."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from api.dependencies import Cursor, Limit, TeamId, Transaction
from api.documentation import errors
from cupilot.domain.evaluation import Verdict
from cupilot.exports import result_archive
from cupilot.schemas import CandidatePage, CandidateView, Report
from cupilot.storage.jobs import candidate_views as views
from cupilot.storage.jobs.report_views import report

router = APIRouter(prefix="/v1/jobs/{job}", tags=["results"])


@router.get("/candidates", summary="List a job's candidates", responses=errors(401, 404, 422))
def list_candidates(
    *,
    session: Transaction,
    team: TeamId,
    job: UUID,
    verdict: Verdict | None = None,
    generation: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    order: views.Order = "ordinal",
    cursor: Cursor = None,
    after: Annotated[
        int | None,
        Query(ge=-1, lt=2**31, deprecated=True, description="Last ordinal of the previous page; see `cursor`."),
    ] = None,
    limit: Limit = 50,
) -> CandidatePage:
    """List candidates by ordinal, which is the order in which they were made, or the fastest first."""
    return views.list_candidates(
        session,
        team,
        job,
        verdict=verdict,
        generation=generation,
        order=order,
        cursor=cursor,
        after=after,
        limit=limit,
    )


@router.get("/candidates/{candidate}", summary="Everything about a candidate", responses=errors(401, 404))
def get_candidate(session: Transaction, team: TeamId, job: UUID, candidate: str) -> CandidateView:
    """Get a candidate by id or ordinal.

    With its strategy as asked for and as aligned, source, launch plan, evaluation and lineage.
    """
    return views.candidate_view(session, team, job, candidate)


@router.get("/best", summary="The winner", responses=errors(401, 404))
def get_best(session: Transaction, team: TeamId, job: UUID) -> Report:
    """Get the best proven kernel so far with all its evidence. A 404 with code `no_result` while there is none."""
    return report(session, team, job)


@router.get(
    "/best/download",
    summary="The winner as a zip",
    response_class=Response,
    responses={
        **errors(401, 404),
        200: {
            "description": "Kernel, launch plan, `problem.h`, the problem, the report as JSON and as Markdown.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
def download_best(session: Transaction, team: TeamId, job: UUID) -> Response:
    """Download everything needed to judge the kernel again with `python -m gpu_worker evaluate`."""
    name = f"cupilot-{job}.zip"
    return Response(
        result_archive(report(session, team, job)),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
