"""``/v1/experiments``: plan, make, follow, list, cancel."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query, Response

from api import experimentation
from api.dependencies import Cursor, Limit, StrictRoute, TeamId, Transaction, plain_text
from api.documentation import EXPERIMENT_EXAMPLES, errors
from api.routes.jobs import IdempotencyKey
from cupilot.schemas import ExperimentJobPage, ExperimentPage, ExperimentPlan, ExperimentRequest, ExperimentView
from cupilot.storage.experiments import cancel_experiment as cancel_all
from cupilot.storage.views import experiments as views

router = APIRouter(prefix="/v1/experiments", tags=["experiments"], route_class=StrictRoute)

Matrix = Annotated[ExperimentRequest, Body(openapi_examples=EXPERIMENT_EXAMPLES)]


@router.post(
    "",
    status_code=202,
    response_model=ExperimentView,
    summary="Start an experiment",
    responses={
        **errors(401, 409, 413, 422),
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
    session: Transaction, team: TeamId, response: Response, request: Matrix, idempotency_key: IdempotencyKey = None
) -> ExperimentView:
    """Makes every job of the matrix, or none: arms x problems x seeds, matched and interleaved over the arms."""
    experiment, is_new = experimentation.submit(session, team, request, idempotency_key)
    response.headers["Location"] = f"/v1/experiments/{experiment.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return _with_retry_after(response, views.experiment_view(session, team, experiment.id))


@router.post("/plan", summary="What an experiment would be", responses=errors(401, 413, 422))
def plan_experiment(session: Transaction, team: TeamId, request: Matrix) -> ExperimentPlan:
    """A dry run: how many jobs, which arms, and what they can use at most. Checks the same and makes nothing."""
    return experimentation.plan(experimentation.draft(session, team, request))


@router.get("", summary="List experiments", responses=errors(401, 422))
def list_experiments(session: Transaction, team: TeamId, cursor: Cursor = None, limit: Limit = 50) -> ExperimentPage:
    """Your team's experiments, newest first."""
    return views.list_experiments(session, team, cursor=cursor, limit=limit)


@router.get("/{experiment}", summary="Follow an experiment", responses=errors(401, 404))
def get_experiment(session: Transaction, team: TeamId, experiment: UUID, response: Response) -> ExperimentView:
    """Jobs by arm and state, what was used so far, and what may be used at most."""
    return _with_retry_after(response, views.experiment_view(session, team, experiment))


@router.post("/{experiment}/cancel", status_code=202, summary="Cancel an experiment", responses=errors(401, 404, 409))
def cancel_experiment(session: Transaction, team: TeamId, experiment: UUID, response: Response) -> ExperimentView:
    """Stops every job that has not ended. Repeating it is harmless; one whose jobs all ended by themselves is a 409."""
    cancel_all(session, team, experiment)
    return _with_retry_after(response, views.experiment_view(session, team, experiment))


@router.get("/{experiment}/jobs", summary="An experiment's jobs", responses=errors(401, 404, 422))
def list_experiment_jobs(
    *,
    session: Transaction,
    team: TeamId,
    experiment: UUID,
    arm: Annotated[str | None, Query(max_length=100, description="Of this arm only.")] = None,
    after: Annotated[int | None, Query(ge=-1, lt=2**31, description="Only higher positions.")] = None,
    limit: Limit = 50,
) -> ExperimentJobPage:
    """In the order of work, each with its arm and seed."""
    return views.list_experiment_jobs(session, team, experiment, arm=plain_text("arm", arm), after=after, limit=limit)


def _with_retry_after(response: Response, experiment: ExperimentView) -> ExperimentView:
    if experiment.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(round(experiment.retry_after_seconds))
    return experiment
