"""``/v1/experiments``: plan, make, follow, list, cancel, report."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Query, Response

from api.dependencies import Cursor, Limit, Member, StrictRoute, TeamId, Transaction, plain_text
from api.documentation import EXPERIMENT_EXAMPLES, errors
from api.routes.jobs import IdempotencyKey
from cupilot.jobs import experiments as experimentation
from cupilot.reports.canvas import Format
from cupilot.reports.figures import FigureName
from cupilot.reports.figures import figure as drawing
from cupilot.reports.spreadsheet import Table
from cupilot.reports.spreadsheet import table as as_csv
from cupilot.reports.words import bundle
from cupilot.schemas import (
    ExperimentJobPage,
    ExperimentPage,
    ExperimentPlan,
    ExperimentReport,
    ExperimentRequest,
    ExperimentView,
)
from cupilot.storage.experiments import views
from cupilot.storage.experiments.experiments import cancel_experiment as cancel_all
from cupilot.storage.experiments.report import experiment_report

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)


def _file(description: str, *media_types: str) -> dict[str, Any]:
    """Return OpenAPI's description of a file."""
    schema = {"type": "string", "format": "binary"}
    return {"description": description, "content": {media_type: {"schema": schema} for media_type in media_types}}


FigureFormat = Annotated[Format, Query(alias="format", description="Equal reports make equal bytes.")]
Matrix = Annotated[ExperimentRequest, Body(openapi_examples=EXPERIMENT_EXAMPLES)]


@router.post(
    "",
    status_code=202,
    response_model=ExperimentView,
    summary="Start an experiment",
    responses={
        **errors(401, 403, 409, 413, 422),
        202: {
            "description": "Accepted: all its jobs are queued. A repeated key answers with the earlier experiment.",
            "headers": {
                "Location": {"description": "Where to follow it.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}},
                "Idempotent-Replayed": {"description": "`true` for an earlier one.", "schema": {"type": "string"}},
            },
        },
    },
)
def submit_experiment(
    session: Transaction, caller: Member, response: Response, request: Matrix, idempotency_key: IdempotencyKey = None
) -> ExperimentView:
    """Make every job of the matrix, or none: arms x problems x seeds, matched and interleaved over the arms."""
    experiment, is_new = experimentation.submit(session, caller, request, idempotency_key)
    response.headers["Location"] = f"/v1/experiments/{experiment.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return _with_retry_after(response, views.experiment_view(session, caller.team_id, experiment.id))


@router.post("/plan", summary="Plan an experiment without starting it", responses=errors(401, 413, 422))
def plan_experiment(session: Transaction, team: TeamId, request: Matrix) -> ExperimentPlan:
    """Check an experiment without making it: how many jobs, which arms, and what they can use at most."""
    return experimentation.plan(experimentation.draft(session, team, request))


@router.get("", summary="List experiments", responses=errors(401, 422))
def list_experiments(session: Transaction, team: TeamId, cursor: Cursor = None, limit: Limit = 50) -> ExperimentPage:
    """List your team's experiments, newest first."""
    return views.list_experiments(session, team, cursor=cursor, limit=limit)


@router.get("/{experiment}", summary="Follow an experiment", responses=errors(401, 404))
def get_experiment(session: Transaction, team: TeamId, experiment: UUID, response: Response) -> ExperimentView:
    """Get an experiment: jobs by arm and state, what was used so far, and what may be used at most."""
    return _with_retry_after(response, views.experiment_view(session, team, experiment))


@router.post("/{experiment}/cancel", status_code=202, summary="Cancel an experiment", responses=errors(401, 404, 409))
def cancel_experiment(session: Transaction, team: TeamId, experiment: UUID, response: Response) -> ExperimentView:
    """Cancel every job that has not ended.

    Repeating it is harmless; an experiment whose jobs all ended by themselves is a 409.
    """
    cancel_all(session, team, experiment)
    return _with_retry_after(response, views.experiment_view(session, team, experiment))


@router.get("/{experiment}/jobs", summary="An experiment's jobs", responses=errors(401, 404, 422))
def list_experiment_jobs(
    *,
    session: Transaction,
    team: TeamId,
    experiment: UUID,
    arm: Annotated[str | None, Query(max_length=100, description="Of this arm only.")] = None,
    cursor: Cursor = None,
    after: Annotated[
        int | None, Query(ge=-1, lt=2**31, deprecated=True, description="Only higher positions; see `cursor`.")
    ] = None,
    limit: Limit = 50,
) -> ExperimentJobPage:
    """List the experiment's jobs in the order of work, each with its arm and seed."""
    arm = plain_text("arm", arm)
    return views.list_experiment_jobs(session, team, experiment, arm=arm, cursor=cursor, after=after, limit=limit)


@router.get("/{experiment}/report", summary="Report an experiment's result", responses=errors(401, 404))
def get_report(session: Transaction, team: TeamId, experiment: UUID) -> ExperimentReport:
    """Get the results so far: medians by arm and problem, paired comparisons, validity, cost.

    No claim is made without an interval.
    """
    return experiment_report(session, team, experiment)


@router.get(
    "/{experiment}/report/tables/{table}",
    summary="A table of the report as CSV",
    response_class=Response,
    responses={**errors(401, 404, 422), 200: _file("The table with its head (RFC 4180).", "text/csv")},
)
def get_table(session: Transaction, team: TeamId, experiment: UUID, table: Table) -> Response:
    """Get one table: arms, cells (arm x problem), comparisons, convergence, or jobs."""
    text = as_csv(experiment_report(session, team, experiment), table)
    return Response(text, media_type="text/csv", headers=_attachment(f"{table.value}.csv"))


@router.get(
    "/{experiment}/report/figures/{figure}",
    summary="A figure of the report",
    response_class=Response,
    responses={**errors(401, 404, 422), 200: _file("The figure.", *(form.media_type for form in Format))},
)
def get_figure(
    session: Transaction,
    team: TeamId,
    experiment: UUID,
    figure: FigureName,
    form: FigureFormat = Format.SVG,
) -> Response:
    """Get one figure, drawn as in the cuPilot paper: convergence, speedups, comparisons, or outcomes."""
    content = drawing(experiment_report(session, team, experiment), figure, form)
    return Response(content, media_type=form.media_type, headers=_attachment(f"{figure.value}.{form.value}"))


@router.get(
    "/{experiment}/report/download",
    summary="The report as a zip",
    response_class=Response,
    responses={
        **errors(401, 404),
        200: _file("JSON, Markdown, every table as CSV, every figure as SVG and PNG.", "application/zip"),
    },
)
def download_report(session: Transaction, team: TeamId, experiment: UUID) -> Response:
    """Download the whole report. While the experiment runs, the report says that it is partial."""
    content = bundle(experiment_report(session, team, experiment))
    return Response(content, media_type="application/zip", headers=_attachment(f"cupilot-experiment-{experiment}.zip"))


def _attachment(name: str) -> dict[str, str]:
    # A figure is drawn from others' names: it is downloaded, never shown as a page of this service.
    return {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }


def _with_retry_after(response: Response, experiment: ExperimentView) -> ExperimentView:
    if experiment.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(round(experiment.retry_after_seconds))
    return experiment
