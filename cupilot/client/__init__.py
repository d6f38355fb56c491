"""The Python client of the service, waiting and asynchronous; the command line is built on it.

    with Client() as client:
        job = client.submit(JobRequest(problem=ProblemInput(id="softmax"), target="cpu"))
        job = client.wait(job.id, lambda job, events: print(job.state))
        print(client.best(job.id).headline)

    async with AsyncClient() as client:
        job = await client.submit(...)

Both have the same methods, each defined once (:mod:`cupilot.client.definitions`), in one module a noun. A call that
finds no server, or a busy one, is tried again where it may be repeated. Fields that a newer server adds are ignored.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

try:  # looked for, not imported: a command that asks no service is quick without it
    _is_there = find_spec("httpx") is not None
except ModuleNotFoundError:
    _is_there = False
if not _is_there:
    raise ModuleNotFoundError("cupilot.client needs httpx: pip install 'cupilot[client]'", name="httpx")

if TYPE_CHECKING:
    from cupilot.client.clients import AsyncClient, Client
    from cupilot.client.errors import (
        ApiError,
        ConflictError,
        NotAllowedError,
        NotAuthorizedError,
        NotFoundError,
        RateLimitedError,
        RejectedError,
        ServerError,
        UnexpectedAnswerError,
        UnreachableError,
    )
    from cupilot.client.jobs import OnUpdate

_HOMES = {
    "AsyncClient": "clients",
    "Client": "clients",
    "ApiError": "errors",
    "ConflictError": "errors",
    "NotAllowedError": "errors",
    "NotAuthorizedError": "errors",
    "NotFoundError": "errors",
    "RateLimitedError": "errors",
    "RejectedError": "errors",
    "ServerError": "errors",
    "UnexpectedAnswerError": "errors",
    "UnreachableError": "errors",
    "OnUpdate": "jobs",
}
"""Module of each name. It is imported when the name is first used, so that a command loads only what it needs."""

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "ConflictError",
    "NotAllowedError",
    "NotAuthorizedError",
    "NotFoundError",
    "OnUpdate",
    "RateLimitedError",
    "RejectedError",
    "ServerError",
    "UnexpectedAnswerError",
    "UnreachableError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
