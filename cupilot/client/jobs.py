"""Calls of the client about jobs: submit, follow, list, cancel, events."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from cupilot import schemas
from cupilot.client.definitions import call, script, stream
from cupilot.client.errors import RateLimitedError
from cupilot.client.protocol import Call, Emit, Pause, Script, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import EventPage, EventView, ImportRequest, JobPage, JobPlan, JobRequest, JobSummary, JobView
    from cupilot.schemas.jobs import JobFilter

JobId = uuid.UUID | str
OnUpdate: TypeAlias = "Callable[[JobView, Sequence[EventView]], None]"

LOOK_SECONDS = 0.5
"""Shortest pause between two looks at a job: a step a millisecond must not become a request a millisecond."""
EVENTS_WAIT_SECONDS = 10.0
EVENTS_PAGE = 500
LONGEST_PAGE = 200


class JobCalls:
    """``/v1/jobs``."""

    @call
    def submit(self, request: JobRequest, *, idempotency_key: str | None = None) -> Call[JobView]:
        """Start a job. A key is made where none is given, so that a repeated attempt never starts a second one."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Call(schemas.JobView, "POST", "/v1/jobs", body=request, headers=headers)

    @call
    def plan(self, request: JobRequest) -> Call[JobPlan]:
        """Plan a job without starting it: what it can use at most, and what earlier ones like it used."""
        return Call(schemas.JobPlan, "POST", "/v1/jobs/plan", body=request, repeatable=True)

    @call
    def judge(self, request: ImportRequest, *, idempotency_key: str | None = None) -> Call[JobView]:
        """Start a job that judges your file against a problem. An idempotency key is made where none is given."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Call(schemas.JobView, "POST", "/v1/imports", body=request, headers=headers)

    @call
    def get(self, job: JobId) -> Call[JobView]:
        """Return the state of a job."""
        return Call(schemas.JobView, "GET", path("v1", "jobs", job))

    @call
    def list(
        self,
        *,
        team: str | None = None,
        order: str = "newest",
        cursor: str | None = None,
        limit: int = 50,
        **filters: Unpack[JobFilter],
    ) -> Call[JobPage]:
        """Return a page of the team's jobs, the ``newest`` or the ``oldest`` first; a cursor goes with its order.

        ``team`` is another one's, for cluster admins.
        """
        parameters = {
            "team": team,
            **_parameters(filters),
            "order": None if order == "newest" else order,
            "cursor": cursor,
            "limit": limit,
        }
        return Call(schemas.JobPage, "GET", "/v1/jobs", params=parameters)

    @stream
    def all_jobs(
        self, *, team: str | None = None, order: str = "newest", **filters: Unpack[JobFilter]
    ) -> Stream[JobSummary]:
        """Return all of the team's jobs, the ``newest`` or the ``oldest`` first, fetched a page at a time."""
        return all_items(
            lambda cursor: JobCalls.list.ask(
                self, team=team, order=order, cursor=cursor, limit=LONGEST_PAGE, **filters
            ),
            lambda page: page.next_cursor,
        )

    @call
    def cancel(self, job: JobId) -> Call[JobView]:
        """Stop a job; ApiError with code ``conflict`` where it ended otherwise."""
        return Call(schemas.JobView, "POST", path("v1", "jobs", job, "cancel"), repeatable=True)

    @call
    def events(self, job: JobId, *, after: int = 0, limit: int = 200, wait: float = 0.0) -> Call[EventPage]:
        """Return a page of what happened to a job.

        With ``wait``, the server waits that many seconds for something new.
        """
        parameters = {"after": after, "limit": limit, "wait": wait}
        return Call(schemas.EventPage, "GET", path("v1", "jobs", job, "events"), params=parameters, timeout=wait + 30.0)

    @stream
    def all_events(self, job: JobId, *, after: int = 0) -> Stream[EventView]:
        """Return everything that has happened to a job so far."""
        return all_items(
            lambda last: JobCalls.events.ask(self, job, after=last or after, limit=EVENTS_PAGE),
            lambda page: page.next_after if len(page.items) == EVENTS_PAGE else None,
        )

    @stream
    def follow(
        self, job: JobId, *, after: int = 0, silence: float = EVENTS_WAIT_SECONDS
    ) -> Stream[tuple[JobView, Sequence[EventView]]]:
        """Return the job and its new events, at once and whenever something happens, until it is final.

        Where nothing happens for ``silence`` seconds the job is given again, since its clocks go on.
        """
        while True:
            view, events = yield from _state_and_events(self, job, after)
            after = events[-1].id if events else after
            yield Emit((view, events))
            if view.final:
                return
            yield from _wait_for_change(self, job, after, silence)

    @script
    def wait(
        self,
        job: JobId,
        on_update: OnUpdate | None = None,
        *,
        timeout: float | None = None,
        silence: float = EVENTS_WAIT_SECONDS,
    ) -> Script[JobView]:
        """Wait until the job is final and return it; raise TimeoutError after ``timeout`` seconds (the job goes on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        after = 0
        while True:
            view, events = yield from _state_and_events(self, job, after)
            after = events[-1].id if events else after
            if on_update is not None:
                on_update(view, events)
            if view.final:
                return view
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"job {job} is not final after {timeout} s")
            yield from _wait_for_change(self, job, after, silence, left)


def _parameters(filters: JobFilter) -> dict[str, Any]:
    """Return a filter as the query parameters of ``GET /v1/jobs``."""
    since, until = filters.get("since"), filters.get("until")
    return {
        "state": filters.get("state"),
        "target": filters.get("target"),
        "problem": filters.get("problem"),
        "label": [f"{key}={value}" for key, value in (filters.get("labels") or {}).items()],
        "user": filters.get("user"),
        "text": filters.get("text"),
        "device": filters.get("device"),
        "since": since.isoformat() if since else None,
        "until": until.isoformat() if until else None,
    }


def _state_and_events(client: object, job: JobId, after: int) -> Script[tuple[JobView, Sequence[EventView]]]:
    """Return the job, and all events after that one."""
    view = yield from JobCalls.get.ask(client, job)
    events: list[EventView] = []
    while True:
        page = yield from JobCalls.events.ask(client, job, after=after, limit=EVENTS_PAGE)
        events += page.items
        if len(page.items) < EVENTS_PAGE:
            return view, events
        after = page.next_after


def _wait_for_change(client: object, job: JobId, after: int, silence: float, left: float = math.inf) -> Script[None]:
    """Wait until something happens to the job, or nothing has for ``silence`` seconds; at most ``left`` seconds."""
    look = min(LOOK_SECONDS, left)
    yield Pause(look)
    left -= look
    try:
        yield from JobCalls.events.ask(client, job, after=after, limit=1, wait=min(silence, left))
    except RateLimitedError as error:  # as many of the team wait as may: this one looks now and then
        yield Pause(min(error.retry_after or silence, left))
