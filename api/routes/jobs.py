"""``/v1/jobs``: submit, follow, list, cancel, events."""

from __future__ import annotations

import time
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool

from api import dependencies
from api.dependencies import (
    Cursor,
    Limit,
    Member,
    StrictRoute,
    TeamId,
    Transaction,
    Viewer,
    authorise,
    bearer,
    caller_of,
    plain_text,
)
from api.documentation import JOB_EXAMPLES, errors
from api.foresight import foreseen
from api.turns import client_of
from cupilot.domain.errors import InvalidInput
from cupilot.domain.people import Role
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState
from cupilot.domain.value import Moment
from cupilot.jobs.planning import plan
from cupilot.jobs.submission import submit
from cupilot.schemas import EventPage, JobPage, JobPlan, JobRequest, JobView
from cupilot.schemas.jobs import JobFilter
from cupilot.storage.db.engine import Database
from cupilot.storage.jobs import job_views as views
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.people.people import team_for, team_of_job

MAX_WAIT_SECONDS = 30.0
"""Below the idle timeout of common proxies (60 s)."""
LOOK_SECONDS = 0.5
"""Pause between looks for whether a client that waits for events is still there."""
MAX_EVENT = 2**63 - 1

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictRoute)

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Repeating a request with the same key returns the first one's job instead of a new one.",
    ),
]


@router.post(
    "",
    status_code=202,
    response_model=JobView,
    summary="Submit a job",
    responses={
        **errors(401, 403, 409, 413, 422),
        202: {
            "description": "Accepted: the job is queued. A repeated idempotency key answers with the earlier job.",
            "headers": {
                "Location": {"description": "Where to follow it.", "schema": {"type": "string"}},
                "Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}},
                "Idempotent-Replayed": {"description": "`true` for an earlier job.", "schema": {"type": "string"}},
            },
        },
    },
)
def submit_job(
    session: Transaction,
    caller: Member,
    request: Annotated[JobRequest, Body(openapi_examples=JOB_EXAMPLES)],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Check everything that can be checked without running your code, and queue the job."""
    job, is_new = submit(session, caller, request, idempotency_key)
    view = views.new_job_view(session, job) if is_new else views.job_view(session, caller.team_id, job.id)
    response = _ready(view, status=202)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
    return response


@router.post("/plan", summary="Plan a job without starting it", responses=errors(401, 403, 413, 422))
def plan_job(
    session: Transaction, caller: Member, request: Annotated[JobRequest, Body(openapi_examples=JOB_EXAMPLES)]
) -> JobPlan:
    """Check a job without making it: what it can use at most, and what earlier jobs used."""
    return plan(session, caller.team_id, request, foreseen)


@router.get("", summary="List jobs", responses=errors(401, 404, 422))
def list_jobs(
    *,
    session: Transaction,
    caller: Viewer,
    order: Annotated[views.Order, Query(description="Which comes first; a cursor is bound to it.")] = "newest",
    cursor: Cursor = None,
    limit: Limit = 50,
    team: Annotated[str | None, Query(max_length=100, description="Another team's: cluster admins only.")] = None,
    state: Annotated[list[JobState] | None, Query(max_length=16, description="Any of these.")] = None,
    target: Target | None = None,
    problem: Annotated[str | None, Query(max_length=200, description="The problem's name.")] = None,
    label: Annotated[
        list[str] | None, Query(max_length=16, description="`key=value`; all of these.", examples=[["model=llama"]])
    ] = None,
    user: Annotated[str | None, Query(max_length=100, description="The user who asked for it.")] = None,
    text: Annotated[
        str | None, Query(max_length=200, description="Part of the problem's name, or the beginning of the job's id.")
    ] = None,
    device: Annotated[
        str | None, Query(max_length=200, description="Part of the name of the device that it runs on, e.g. `H200`.")
    ] = None,
    since: Annotated[Moment | None, Query(description="Submitted at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Submitted before this time.")] = None,
) -> JobPage:
    """List your team's jobs, by time of submission."""
    filters = JobFilter(
        state=state,
        target=target,
        problem=plain_text("problem", problem),
        labels=_labels(label or []),
        user=plain_text("user", user),
        text=plain_text("text", text),
        device=plain_text("device", device),
        since=since,
        until=until,
    )
    home = team_for(session, caller, plain_text("team", team) or caller.team)
    return views.list_jobs(session, home.id, filters, order=order, cursor=cursor, limit=limit)


@router.get("/{job}", summary="Follow a job", response_model=JobView, responses=errors(401, 404))
async def get_job(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    database: Annotated[Database, Depends(dependencies.database)],
    job: UUID,
) -> Response:
    """Get a job: state, counts by verdict, the best kernel so far.

    `Retry-After` says when to ask again. A cluster admin may read any team's jobs.
    """

    # The request that is sent most: one thread does all of it.
    def look() -> Response:
        with database.reading() as session:
            caller = caller_of(request, session, credentials)
            caller.needs(Role.VIEWER)
            view = views.job_view(session, team_of_job(session, caller, job), job)
        return _ready(view)

    async with request.app.state.turns.take(client_of(request)):
        return await run_in_threadpool(look)


@router.post("/{job}/cancel", status_code=202, summary="Cancel a job", responses=errors(401, 404, 409))
def cancel_job(session: Transaction, team: TeamId, job: UUID, response: Response) -> JobView:
    """Cancel the job; its best kernel so far is kept.

    Repeating it is harmless; a job that ended otherwise is a 409.
    """
    request_cancel(session, team, job)
    return _with_retry_after(response, views.job_view(session, team, job))


@router.get("/{job}/events", summary="List a job's events", responses=errors(401, 404, 422, 429))
async def list_events(
    *,
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    database: Annotated[Database, Depends(dependencies.database)],
    job: UUID,
    after: Annotated[int, Query(ge=0, le=MAX_EVENT, description="Only events with higher ids.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    wait: Annotated[
        float, Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for an event where there is none.")
    ] = 0.0,
) -> EventPage:
    """List the job's events, one a transition, oldest first. With `wait` the answer waits for the next one.

    A request that waits counts as an open event stream.
    """

    def look() -> tuple[UUID, EventPage]:
        with database.transaction() as session:
            team = authorise(session, credentials)
            return team, views.list_events(session, team, job, after=after, limit=limit)

    async def look_in_turn() -> tuple[UUID, EventPage]:
        async with request.app.state.turns.take(client_of(request)):
            return await run_in_threadpool(look)

    deadline = time.monotonic() + wait
    team, page = await look_in_turn()
    if wait and not page.items and await _event_follows(request, team, job, after, deadline):
        _, page = await look_in_turn()
    return page


async def _event_follows(request: Request, team: UUID, job: UUID, after: int, deadline: float) -> bool:
    """Wait for an event of the job until ``deadline``, or until the client leaves; return whether there is one.

    Holds neither a turn nor a connection to the database meanwhile.
    """
    subscription, _ = await run_in_threadpool(request.app.state.hub.subscribe, team, job)
    try:
        with request.app.state.metrics.waiting(request.scope):
            while (left := deadline - time.monotonic()) > 0 and not await request.is_disconnected():
                if await subscription.next(after, min(left, LOOK_SECONDS)):
                    return True
        return False
    finally:
        subscription.close()


def _ready(view: JobView, status: int = 200) -> Response:
    """Return an answer as it is sent. FastAPI would validate once more what was built here, in a thread of its own."""
    response = Response(view.model_dump_json(), status, media_type="application/json")
    _with_retry_after(response, view)
    return response


def _with_retry_after(response: Response, job: JobView) -> JobView:
    if job.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(round(job.retry_after_seconds) or 1)
    return job


def _labels(texts: list[str]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for label in texts:
        key, equals, value = label.partition("=")
        if not key or not equals or "\0" in label:
            raise InvalidInput("a label filter looks like key=value", where="query.label")
        labels[key] = value
    return labels
