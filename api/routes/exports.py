"""``/v1/jobs/{job}/exports``: a proven kernel in a format for use elsewhere."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response

from api.dependencies import TeamId, Transaction
from api.documentation import errors
from cupilot.exports import ExportFormat, Winner, archive, refusals
from cupilot.schemas import ExportList, ExportOffer, Report
from cupilot.storage.jobs.report_views import report, report_on

router = APIRouter(prefix="/v1/jobs/{job}", tags=["results"])

Name = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=40,
        description="Name of package, operator and files instead of the problem's, "
        "so that several exports of one problem can be installed together.",
    ),
]

_ZIP: dict[int | str, dict[str, Any]] = {
    **errors(401, 404, 409, 422),
    200: {
        "description": "The files, as a zip.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    },
}


@router.get("/exports", summary="List the winner's export formats", responses=errors(401, 404))
def list_exports(session: Transaction, team: TeamId, job: UUID) -> ExportList:
    """List the available exports of the best kernel, and why others are not available."""
    return _offers(report(session, team, job))


@router.get("/exports/{form}", summary="Export the winner", response_class=Response, responses=_ZIP)
def export_best(session: Transaction, team: TeamId, job: UUID, form: ExportFormat, name: Name = None) -> Response:
    """Export the best kernel in one format.

    `torch`: a package with a custom operator and a module that falls back to the reference; `kernelbench`: a `ModelNew`
    file; `cupy`: a function on CuPy arrays; `bundle`: everything, with a script that measures it again. A format that
    cannot carry what the kernel needs is refused (`export_refused`).
    """
    return _zip(report(session, team, job), form, name)


@router.get(
    "/candidates/{candidate}/exports", summary="List a candidate's export formats", responses=errors(401, 404, 409)
)
def list_candidate_exports(session: Transaction, team: TeamId, job: UUID, candidate: str) -> ExportList:
    """List the available exports of any candidate that counts, by id or ordinal."""
    return _offers(report_on(session, team, job, candidate))


@router.get(
    "/candidates/{candidate}/exports/{form}",
    summary="Export a candidate",
    response_class=Response,
    responses=_ZIP,
)
def export_candidate(
    session: Transaction, team: TeamId, job: UUID, candidate: str, form: ExportFormat, *, name: Name = None
) -> Response:
    """Export any candidate that counts, by id or ordinal."""
    return _zip(report_on(session, team, job, candidate), form, name)


def _offers(report: Report) -> ExportList:
    return ExportList(
        candidate=report.candidate.id,
        ordinal=report.candidate.ordinal,
        items=[ExportOffer(format=form, refused=why) for form, why in refusals(Winner.of(report)).items()],
    )


def _zip(report: Report, form: ExportFormat, name: str | None) -> Response:
    file = f"cupilot-{report.job.id}-{report.candidate.ordinal}-{form.value}.zip"
    return Response(
        archive(Winner.of(report, name), form),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="{file}"'},
    )
