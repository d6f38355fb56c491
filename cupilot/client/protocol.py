"""Describe a call of the service as data and steps: the request, the parsing of the answer, the retries.

Sends nothing and sleeps nowhere. A *script* is a generator that yields what is to be done (:class:`Send`,
:class:`Pause`, for streams also :class:`Emit`) and is given the outcome, so that the waiting and the asynchronous
client run the same code ("sans I/O", https://sans-io.readthedocs.io).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from cupilot import __version__
from cupilot.client.errors import UnexpectedAnswerError, refusal, retry_after, unreachable
from cupilot.domain.value import from_a_newer_version

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
PageT = TypeVar("PageT", bound="Page")

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
REFUSED_UNDONE = frozenset({429})
"""Statuses that say that nothing was done, so that even a call that must not be done twice may be sent again."""
SAFE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
"""Methods that may be repeated (RFC 9110 section 9.2.2)."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Call(Generic[T]):
    """Request, and the type of its answer: a schema, ``bytes`` for the body as it is, ``type(None)`` for nothing."""

    model: type[T]
    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    """Query parameters; those that are None are left out, sequences are repeated."""
    body: BaseModel | None = None
    """Sent as JSON, with those fields that were set."""
    content: bytes | None = None
    """Sent as it is, where there is no ``body``; its type is one of the headers."""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds; None for the client's own."""
    repeatable: bool | None = None
    """True if the request may be repeated safely; None: the HTTP method, or an idempotency key, decides."""

    @property
    def may_be_repeated(self) -> bool:
        """True if the request may be repeated after an unknown outcome."""
        if self.repeatable is not None:
            return self.repeatable
        return self.method in SAFE_METHODS or "Idempotency-Key" in self.headers

    def options(self) -> dict[str, Any]:
        """Return the request as keyword arguments of httpx."""
        options: dict[str, Any] = {"method": self.method, "url": self.path, "headers": dict(self.headers)}
        options["params"] = {name: value for name, value in self.params.items() if value is not None}
        if self.timeout is not None:
            options["timeout"] = self.timeout
        if self.content is not None:
            options["content"] = self.content
        if self.body is not None:
            options["content"] = self.body.model_dump_json(exclude_unset=True).encode()
            options["headers"]["Content-Type"] = "application/json"
        return options

    def read(self, response: httpx.Response, url: str) -> T:
        """Return the result in an answer."""
        answer: Any = response.content
        if issubclass(self.model, BaseModel):
            answer = read_content(self.model, response.content, response, url)
        elif self.model is type(None):
            answer = None
        return answer  # type: ignore[no-any-return]


def read_answer(model: type[ModelT], content: bytes | str) -> ModelT:
    """Parse an answer, perhaps of a newer service.

    Unknown fields are ignored, unknown words kept; raises ValidationError.
    """
    with from_a_newer_version():
        return model.model_validate_json(content, extra="ignore")


def read_content(model: type[ModelT], content: bytes | str, response: httpx.Response, url: str) -> ModelT:
    """Parse what a response says; raises UnexpectedAnswerError where it does not fit."""
    try:
        return read_answer(model, content)
    except ValidationError as error:
        raise UnexpectedAnswerError(
            "unexpected_answer",
            f"the answer of {url} does not fit this version of the client ({__version__})",
            hint=f"check the URL and the service's version; {error.error_count()} fields differ",
            status=response.status_code,
            request_id=response.headers.get("X-Request-ID"),
        ) from error


class LineSplitter:
    """Cut text that comes in pieces into lines that end with LF or CR LF.

    Unlike httpx's lines, none ends at another character that Unicode calls a line break: JSON holds such as they are.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> Sequence[str]:
        """Return the lines that this piece completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return [line.removesuffix("\r") for line in lines]


@dataclass(frozen=True)
class Send:
    """Step: send this request. The outcome is the response, or the error that there was none."""

    call: Call[Any]


@dataclass(frozen=True)
class Pause:
    """Step: wait."""

    seconds: float


@dataclass(frozen=True)
class Emit(Generic[T]):
    """Step: yield this to the caller."""

    item: T


@dataclass(frozen=True)
class Open:
    """Step of a stream: send this and keep the connection. The outcome is the response, read only where refused."""

    call: Call[Any]


@dataclass(frozen=True)
class NextLine:
    """Step of a stream: read on. The outcome is a line, None at the end, or the error that broke the connection."""


Script = Generator[Send | Pause, Any, T]
"""Steps that end with a result."""
Stream = Generator[Send | Pause | Open | NextLine | Emit[T], Any, None]
"""Steps that give items on the way."""


@dataclass(frozen=True)
class Service:
    """The service that steps talk to: address, key, retries."""

    url: str
    retries: int


def perform(service: Service, call: Call[T]) -> Script[T]:
    """Send a call until it is answered, as often as it may be repeated and the client has patience."""
    for attempt in range(service.retries + 1):
        last = attempt == service.retries
        outcome: httpx.Response | httpx.RequestError = yield Send(call)
        if isinstance(outcome, httpx.RequestError):
            if last or not (call.may_be_repeated or _never_sent(outcome)):
                raise unreachable(service.url, outcome) from outcome
            yield Pause(pause_seconds(attempt, None))
        elif outcome.is_success:
            return call.read(outcome, service.url)
        else:
            worth_it = RETRIED_STATUSES if call.may_be_repeated else REFUSED_UNDONE
            if last or outcome.status_code not in worth_it:
                raise refusal(outcome)
            yield Pause(pause_seconds(attempt, retry_after(outcome)))
    raise AssertionError("the last attempt returns or raises")


class Page(Protocol):
    """Page of a long list."""

    @property
    def items(self) -> Sequence[Any]:
        """Items of this page."""


def all_items(fetch: Callable[[Any], Script[PageT]], following: Callable[[PageT], Any]) -> Stream[Any]:
    """Return the items of all pages, one after the other.

    ``fetch`` is given None, then what ``following`` says of each page, until that is None.
    """
    position: Any = None
    while True:
        page = yield from fetch(position)
        for item in page.items:
            yield Emit(item)
        position = following(page)
        if position is None:
            return


def path(*parts: object) -> str:
    """Return a path whose parts are escaped, so that none can change the others."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def _never_sent(error: httpx.RequestError) -> bool:
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def pause_seconds(attempt: int, wanted: float | None) -> float:
    """Return a pause that doubles with each try, with jitter, so that clients that failed together do not retry
    together.
    """
    if wanted is not None:
        return min(wanted, LONGEST_PAUSE_SECONDS)
    return min(FIRST_PAUSE_SECONDS * 2.0**attempt, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
