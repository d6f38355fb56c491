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

try:
    import httpx  # noqa: F401 - only to say which extra is missing
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("cupilot.client needs httpx: pip install 'cupilot[client]'", name="httpx") from error

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
