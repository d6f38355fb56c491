"""``/v1/events`` and the streams of events: a team's and a job's."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials

from api.dependencies import TeamId, Transaction, authorise, bearer
from api.documentation import errors
from api.event_stream import MEDIA_TYPE, EventStream
from api.streams import Hub
from cupilot.domain.errors import CupilotError, Unavailable
from cupilot.schemas import EventPage
from cupilot.storage.db.feed import nothing_follows
from cupilot.storage.jobs import job_views as views
from cupilot.storage.jobs.jobs import get_job

MAX_EVENT = 2**63 - 1

router = APIRouter(prefix="/v1", tags=["events"])

After = Annotated[int | None, Query(ge=0, le=MAX_EVENT, description="Only events with higher ids.")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", max_length=20, description="Instead of `after`, as browsers send it.")
]
Key = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One message an event: `id` is the event's, `data` the event as JSON. A comment line every 15 s"
        " keeps the connection open. The message `end` says that nothing follows, `reconnect` that the client is to"
        " connect again with the last id it has seen.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    },
}


@router.get("/events", summary="List the events of your team's jobs", responses=errors(401, 422))
def list_team_events(
    session: Transaction,
    team: TeamId,
    after: Annotated[int, Query(ge=0, le=MAX_EVENT, description="Only events with higher ids.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> EventPage:
    """List events of all jobs, oldest first. `next_after` continues; no event is ever added before it."""
    return views.list_team_events(session, team, after=after, limit=limit)


@router.get(
    "/events/stream",
    summary="Stream the events of your team's jobs",
    response_class=Response,
    responses={**errors(401, 422, 429), **STREAM},
)
def stream_team_events(
    request: Request, team: TeamId, credentials: Key, after: After = None, last_event_id: LastEventId = None
) -> Response:
    """Stream the team's events (server-sent). Without `after` or `Last-Event-ID` the stream starts now."""
    return event_stream(request, credentials, team, None, continue_after(last_event_id, after))


@router.get(
    "/jobs/{job}/events/stream",
    summary="Stream a job's events",
    response_class=Response,
    responses={
        **errors(401, 404, 422, 429),
        **STREAM,
        204: {"description": "The job has ended and nothing follows: browsers stop connecting again."},
    },
)
def stream_job_events(
    *,
    request: Request,
    session: Transaction,
    team: TeamId,
    credentials: Key,
    job: UUID,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Stream the job's events (server-sent) until the job ends.

    Starts at the job's first event, or after the one that `after` or `Last-Event-ID` names.
    """
    position = continue_after(last_event_id, after) or 0
    get_job(session, team, job)
    if position and nothing_follows(session, job, position):
        return Response(status_code=204)
    return event_stream(request, credentials, team, job, position)


def event_stream(
    request: Request, credentials: HTTPAuthorizationCredentials | None, team: UUID, job: UUID | None, after: int | None
) -> Response:
    """Return a stream of a team's or a job's events: after this one, or from now on."""
    hub: Hub = request.app.state.hub
    subscription, now = hub.subscribe(team, job)
    start = now if after is None else after
    state = request.app.state

    def may_read() -> bool:
        """Return True if the key still allows this; while the database is away nothing is read anyway."""
        try:
            with hub.database.transaction() as session:
                return authorise(session, credentials) == team
        except CupilotError as error:
            return isinstance(error, Unavailable)

    return EventStream(subscription, start, state.settings.stream_seconds, state.metrics, may_read)


def continue_after(last_event_id: str | None, after: int | None) -> int | None:
    """Return the event to continue after.

    The header wins, since a browser repeats the URL unchanged when it reconnects. Invalid values are ignored.
    """
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        return min(int(last_event_id), MAX_EVENT)
    return after
