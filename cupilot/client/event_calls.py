"""Calls of the client about events: a team's, and streams that reconnect where they broke off.

A stream is server-sent events (WHATWG HTML, section 9.2), read as far as the service writes it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import httpx

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.errors import refusal, retry_after, unreachable
from cupilot.client.jobs import EVENTS_PAGE, JobId
from cupilot.client.protocol import (
    RETRIED_STATUSES,
    Call,
    Emit,
    NextLine,
    Open,
    Pause,
    Service,
    Stream,
    all_items,
    path,
    pause_seconds,
    read_content,
)

if TYPE_CHECKING:
    from cupilot.schemas import EventPage, EventView

SILENCE_SECONDS = 45.0
"""Three heartbeats of the server: a connection that says less is dead."""
QUIET_ATTEMPT = 3
"""Number of the attempt whose pause follows a connection that ended without an event: a proxy may end such all day."""
EVENT_STREAM = "text/event-stream"


class EventCalls:
    """``/v1/events`` and the streams."""

    service: Service

    @call
    def team_events(self, *, after: int = 0, limit: int = 200) -> Call[EventPage]:
        """Return a page of what happened to the team's jobs."""
        return Call(schemas.EventPage, "GET", "/v1/events", params={"after": after, "limit": limit})

    @stream
    def all_team_events(self, *, after: int = 0) -> Stream[EventView]:
        """Return everything that has happened to the team's jobs so far."""
        return all_items(
            lambda last: EventCalls.team_events.ask(self, after=last or after, limit=EVENTS_PAGE),
            lambda page: page.next_after if len(page.items) == EVENTS_PAGE else None,
        )

    @stream
    def stream_events(self, job: JobId, *, after: int = 0) -> Stream[EventView]:
        """Return a job's events from after that id on, each as it happens, until the job has ended.

        A connection that breaks is made again, and nothing is lost or told twice; UnreachableError where that cannot
        be done.
        """
        return _follow(self.service, path("v1", "jobs", job, "events", "stream"), after)

    @stream
    def stream_team_events(self, *, after: int | None = None) -> Stream[EventView]:
        """Return the events of all jobs of the team, without an end; from now on where ``after`` is not given."""
        return _follow(self.service, "/v1/events/stream", after)


def _follow(service: Service, where: str, after: int | None) -> Stream[EventView]:
    failures = 0
    while True:
        headers = {"Accept": EVENT_STREAM} | ({} if after is None else {"Last-Event-ID": str(after)})
        outcome: Any = yield Open(Call(schemas.EventPage, "GET", where, headers=headers, timeout=SILENCE_SECONDS))
        wanted: float | None = None
        if isinstance(outcome, httpx.Response):
            if outcome.status_code == httpx.codes.NO_CONTENT:
                return
            if outcome.is_success:
                before = after
                after, ended = yield from _one_connection(outcome, service.url, after)
                if ended:
                    return
                failures = 0
                yield Pause(pause_seconds(0 if after != before else QUIET_ATTEMPT, None))
                continue
            elif outcome.status_code not in RETRIED_STATUSES or failures >= service.retries:
                raise refusal(outcome)
            else:
                failures, wanted = failures + 1, retry_after(outcome)
        else:
            failures += 1
            if failures > service.retries:
                raise unreachable(service.url, outcome) from outcome
        yield Pause(pause_seconds(min(failures, 10), wanted))


def _one_connection(
    response: httpx.Response, url: str, after: int | None
) -> Generator[Any, Any, tuple[int | None, bool]]:
    """Emit the connection's events; return the id of the last one, and whether none can follow."""
    name, data = "", ""
    while True:
        line: str | httpx.RequestError | None = yield NextLine()
        if line is None or isinstance(line, httpx.RequestError):
            return after, False
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line:
            if name in ("end", "reconnect"):
                return after, name == "end"
            if data and not name:
                event = read_content(schemas.EventView, data, response, url)
                after = event.id
                yield Emit(event)
            name, data = "", ""
