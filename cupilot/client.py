"""The Python client of the service, synchronous; the command line is built on it.

    with Client() as client:
        job = client.submit(JobRequest(problem=ProblemInput(id="softmax"), target="cpu"))
        job = client.wait(job.id, lambda job, events: print(job.state))
        print(client.best(job.id).headline)

Every call may be repeated safely (a submission carries an idempotency key), so a call that finds no server, or a busy
one, is tried again. Fields that a newer server adds are ignored.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from cupilot import __version__
from cupilot.endpoint import find_endpoint
from cupilot.evaluation import Verdict
from cupilot.problem import Target
from cupilot.schemas import (
    CandidatePage,
    CandidateView,
    ClusterView,
    ErrorEnvelope,
    EventPage,
    EventView,
    JobPage,
    JobRequest,
    JobView,
    ProblemPage,
    ProblemView,
    Report,
    VersionView,
)

Model = TypeVar("Model", bound=BaseModel)
JobId = uuid.UUID | str
OnUpdate = Callable[[JobView, Sequence[EventView]], None]

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
LOOK_SECONDS = 0.5
"""Shortest pause between two looks at a job: a step a millisecond must not become a request a millisecond."""
EVENTS_WAIT_SECONDS = 10.0
EVENTS_PAGE = 500


class ApiError(Exception):
    """The service refused a request, or could not be reached (status 0)."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        status: int = 0,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """Stable and machine-readable; ``unreachable`` where no server answered."""
        self.message = message
        self.hint = hint
        self.where = where
        self.status = status
        """HTTP status; 0 where no server answered."""
        self.request_id = request_id


class Client:
    """A connection to one service with one team's key. Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        data: Path | str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        """Where url or key are not given, :func:`cupilot.endpoint.find_endpoint` finds them; NoServer if nowhere."""
        endpoint = find_endpoint(url, api_key, Path(data) if data else None)
        self.url = endpoint.url
        self._retries = retries
        headers = {"User-Agent": f"cupilot/{__version__}"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        # A proxy for the Internet must not swallow calls to a stack on this machine.
        local = httpx.URL(self.url).host in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=not local)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # --- jobs ------------------------------------------------------------------------------------------------------

    def submit(self, request: JobRequest, *, idempotency_key: str | None = None) -> JobView:
        """Start a job. A key is made where none is given, so that a repeated attempt never starts a second one."""
        key = idempotency_key or uuid.uuid4().hex
        return self._get(
            JobView,
            "POST",
            "/v1/jobs",
            content=request.model_dump_json(exclude_unset=True).encode(),
            headers={"Idempotency-Key": key, "Content-Type": "application/json"},
        )

    def get(self, job: JobId) -> JobView:
        """Where a job stands."""
        return self._get(JobView, "GET", _path("v1", "jobs", job))

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        target: Target | str | None = None,
        problem: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """A page of the team's jobs, newest first."""
        parameters = {
            "state": state,
            "target": target,
            "problem": problem,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "cursor": cursor,
            "limit": limit,
        }
        return self._get(JobPage, "GET", "/v1/jobs", params=_given(parameters))

    def cancel(self, job: JobId) -> JobView:
        """Stop a job; ApiError with code ``conflict`` where it ended otherwise."""
        return self._get(JobView, "POST", _path("v1", "jobs", job, "cancel"))

    def events(self, job: JobId, *, after: int = 0, limit: int = 200, wait: float = 0.0) -> EventPage:
        """A page of what happened to a job; with ``wait``, the server waits that many seconds for something new."""
        parameters = {"after": after, "limit": limit, "wait": wait}
        path = _path("v1", "jobs", job, "events")
        return self._get(EventPage, "GET", path, params=parameters, timeout=wait + 30.0)

    def follow(
        self, job: JobId, *, after: int = 0, silence: float = EVENTS_WAIT_SECONDS
    ) -> Iterator[tuple[JobView, Sequence[EventView]]]:
        """The job and its new events, at once and whenever something happens, until it is final.

        Where nothing happens for ``silence`` seconds the job is given again, since its clocks go on.
        """
        while True:
            view = self.get(job)
            events = tuple(self._events_up_to_now(job, after))
            after = events[-1].id if events else after
            yield view, events
            if view.final:
                return
            time.sleep(LOOK_SECONDS)
            self.events(job, after=after, limit=1, wait=silence)

    def wait(
        self,
        job: JobId,
        on_update: OnUpdate | None = None,
        *,
        timeout: float | None = None,
        silence: float = EVENTS_WAIT_SECONDS,
    ) -> JobView:
        """Block until the job is final and return it; TimeoutError after ``timeout`` seconds (the job goes on)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for view, events in self.follow(job, silence=silence):
            if on_update is not None:
                on_update(view, events)
            if view.final:
                return view
            if deadline is not None and time.monotonic() > deadline:
                break
        raise TimeoutError(f"job {job} is not final after {timeout} s")

    # --- results ---------------------------------------------------------------------------------------------------

    def candidates(
        self,
        job: JobId,
        *,
        verdict: Verdict | str | None = None,
        generation: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> CandidatePage:
        """A page of a job's candidates, by ordinal."""
        parameters = {"verdict": verdict, "generation": generation, "after": after, "limit": limit}
        return self._get(CandidatePage, "GET", _path("v1", "jobs", job, "candidates"), params=_given(parameters))

    def candidate(self, job: JobId, candidate: JobId | int) -> CandidateView:
        """Everything about a candidate, by id or ordinal."""
        return self._get(CandidateView, "GET", _path("v1", "jobs", job, "candidates", candidate))

    def best(self, job: JobId) -> Report:
        """The winner with its evidence; ApiError with code ``no_result`` while there is none."""
        return self._get(Report, "GET", _path("v1", "jobs", job, "best"))

    def download(self, job: JobId) -> bytes:
        """The winner as a zip: kernel, plan, header, problem, report."""
        return self._request("GET", _path("v1", "jobs", job, "best", "download")).content

    # --- the service -----------------------------------------------------------------------------------------------

    def problems(self, *, cursor: str | None = None, limit: int = 50) -> ProblemPage:
        """A page of problems; all built-in ones are on the first."""
        return self._get(ProblemPage, "GET", "/v1/problems", params=_given({"cursor": cursor, "limit": limit}))

    def problem(self, problem: str) -> ProblemView:
        """A problem with its source."""
        return self._get(ProblemView, "GET", _path("v1", "problems", problem))

    def cluster(self) -> ClusterView:
        """Workers, devices, queues."""
        return self._get(ClusterView, "GET", "/v1/cluster")

    def version(self) -> VersionView:
        """Which software answers; needs no key."""
        return self._get(VersionView, "GET", "/v1/version")

    # --- one call --------------------------------------------------------------------------------------------------

    def _events_up_to_now(self, job: JobId, after: int) -> Iterator[EventView]:
        while True:
            page = self.events(job, after=after, limit=EVENTS_PAGE)
            yield from page.items
            if len(page.items) < EVENTS_PAGE:
                return
            after = page.next_after

    def _get(self, model: type[Model], method: str, path: str, **options: Any) -> Model:
        response = self._request(method, path, **options)
        try:
            return model.model_validate_json(response.content, extra="ignore")
        except ValidationError as error:
            raise ApiError(
                "unexpected_answer",
                f"{self.url} does not answer as a cuPilot service of this version ({__version__}) does",
                hint=f"is this its URL, and its version close to this one? {error.error_count()} fields differ",
                status=response.status_code,
            ) from error

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        attempt = 0
        while True:
            try:
                response = self._http.request(method, path, **options)
            except httpx.RequestError as error:
                if attempt >= self._retries:
                    raise _unreachable(self.url, error) from error
                time.sleep(_pause(attempt, None))
            else:
                if response.is_success:
                    return response
                if response.status_code not in RETRIED_STATUSES or attempt >= self._retries:
                    raise _refusal(response)
                time.sleep(_pause(attempt, response.headers.get("Retry-After")))
            attempt += 1


def _path(*parts: object) -> str:
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _pause(attempt: int, retry_after: str | None) -> float:
    """Doubling with jitter, so that clients which failed together do not come back together."""
    if retry_after is not None and retry_after.isdigit():
        return min(float(retry_after), LONGEST_PAUSE_SECONDS)
    return min(FIRST_PAUSE_SECONDS * 2.0**attempt, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)


def _unreachable(url: str, error: httpx.RequestError) -> ApiError:
    reason = str(error) or type(error).__name__
    return ApiError("unreachable", f"no server answers at {url}: {reason}", hint="is it running? try cupilot up")


def _refusal(response: httpx.Response) -> ApiError:
    try:
        error = ErrorEnvelope.model_validate_json(response.content, extra="ignore").error
    except ValidationError:
        return ApiError(
            "unexpected_answer",
            f"{response.request.url.host} answered {response.status_code} without an error of this service",
            hint="is this the URL of a cuPilot service, or of a proxy before it?",
            status=response.status_code,
            request_id=response.headers.get("X-Request-ID"),
        )
    return ApiError(
        error.code,
        error.message,
        hint=error.hint,
        where=error.where,
        status=response.status_code,
        request_id=error.request_id,
    )
