"""Health, readiness, version, and what the service runs on."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials
from prometheus_client import CONTENT_TYPE_LATEST

from api import dependencies
from api.dependencies import Transaction, bearer, team
from api.documentation import errors
from api.readiness import check
from cupilot import __version__
from cupilot.domain.errors import Unauthorized
from cupilot.schemas import ClusterView, Health, Readiness, VersionView
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cluster_views import cluster_view

router = APIRouter(tags=["service"])


@router.get("/healthz", summary="The process is alive")
async def health() -> Health:
    """Report that this process runs. Checks nothing else: a failing database is no reason to restart it."""
    return Health()


@router.get(
    "/readyz",
    summary="Requests can be served",
    responses={503: {"description": "The database or its schema is not there.", "model": Readiness}},
)
def ready(response: Response, database: Annotated[Database, Depends(dependencies.database)]) -> Readiness:
    """Report whether requests can be served.

    Database and migrations decide; Redis and Chroma are reported, since requests are served without them.
    """
    result = check(database)
    response.status_code = 200 if result.ready else 503
    return result


@router.get("/v1/version", summary="Show the service's version")
async def version() -> VersionView:
    """Get the version of service and API."""
    return VersionView(version=__version__)


@router.get("/v1/cluster", summary="Workers, devices, queues", responses=errors(401), dependencies=[Depends(team)])
def cluster(session: Transaction) -> ClusterView:
    """Get the cluster's state, the same for every team; `targets` says what jobs can run on now."""
    return cluster_view(session)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        **errors(401, 404),
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
def metrics(request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> Response:
    """Get the metrics, with the operators' token instead of an API key.

    In production without a configured token there is no such route.
    """
    settings = request.app.state.settings
    if settings.metrics_token is None:
        if settings.environment == "production":
            raise HTTPException(404)
    elif credentials is None or not hmac.compare_digest(
        credentials.credentials.encode(), settings.metrics_token.get_secret_value().encode()
    ):
        raise Unauthorized("this needs the metrics token", hint="send the value of CUPILOT_METRICS_TOKEN as Bearer")
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
