"""Dependencies of endpoints: a transaction, a caller whose role suffices, a strictly parsed body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from math import isfinite
from typing import Annotated, Any
from uuid import UUID

import pydantic_core
from fastapi import Depends, HTTPException, Query, Request
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.turns import client_of
from cupilot.domain.errors import InvalidInput, Unauthorized
from cupilot.domain.people import Caller, Role
from cupilot.storage.db.changes import changes, watch
from cupilot.storage.db.engine import Database
from cupilot.storage.people.teams import identify

bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    bearerFormat="cpk_...",
    description="An API key of a team. The embedded stack writes one to the file `api_key` in its data folder.",
)


async def database(request: Request) -> Database:
    """Return the process's database."""
    opened: Database = request.app.state.database
    return opened


async def transaction(request: Request, database: Annotated[Database, Depends(database)]) -> AsyncIterator[Session]:
    """Yield the request's one transaction. It commits before the answer is sent, so that no answer is wrong.

    Requests wait for their turn here, where they hold nothing. A request goes from thread to thread, for its
    dependencies and for its endpoint, and keeps its connection meanwhile: with more transactions than threads, all
    threads could wait for connections whose holders wait for a thread.
    """
    opened = _begun(request, database)
    async with request.app.state.turns.take(client_of(request)), contextmanager_in_threadpool(opened) as session:
        yield session


@contextmanager
def _begun(request: Request, database: Database) -> Iterator[Session]:
    """Yield a transaction, with its caller looked up in the same thread; leave what it changed for the audit log."""
    scheme, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    with database.transaction() as session:
        request.state.key_holder = identify(session, secret) if scheme.lower() == "bearer" else None
        if request.method in READING:
            yield session
            return
        watch(session)
        yield session
        request.state.changes = changes(session)


Transaction = Annotated[Session, Depends(transaction, scope="function")]


def identified(session: Session, credentials: HTTPAuthorizationCredentials | None) -> Caller:
    """Return who the key says that it is; Unauthorized without a valid one."""
    return _known(credentials, None if credentials is None else identify(session, credentials.credentials))


def _known(credentials: HTTPAuthorizationCredentials | None, caller: Caller | None) -> Caller:
    if caller is None:
        raise Unauthorized(
            "this needs an API key" if credentials is None else "the API key is unknown, has expired or was revoked",
            hint="send the header Authorization: Bearer cpk_...",
        )
    return caller


def caller_of(request: Request, session: Session, credentials: HTTPAuthorizationCredentials | None) -> Caller:
    """Return who asks, for an endpoint without a transaction; the audit log learns it too."""
    caller = identified(session, credentials)
    request.state.caller = caller  # for the audit log: the request may revoke the very key
    return caller


def authorise(session: Session, credentials: HTTPAuthorizationCredentials | None, needed: Role = Role.VIEWER) -> UUID:
    """Return the team of the request's key, for an endpoint without a transaction; Forbidden below ``needed``."""
    caller = identified(session, credentials)
    caller.needs(needed)
    return caller.team_id


async def identity(
    request: Request,
    _: Transaction,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Caller:
    """Return who asks, whatever their role. For routes about the caller itself; others say what they need."""
    caller = _known(credentials, request.state.key_holder)
    request.state.caller = caller  # for the audit log: the request may revoke the very key
    return caller


@cache
def require(role: Role) -> Callable[..., Coroutine[Any, Any, Caller]]:
    """Return a dependency that gives the caller, who must have at least this role in the key's team."""

    async def allowed(caller: Annotated[Caller, Depends(identity)]) -> Caller:
        caller.needs(role)
        return caller

    return allowed


async def cluster_admin(caller: Annotated[Caller, Depends(identity)]) -> Caller:
    """Return the caller, who must be a cluster admin."""
    caller.needs_cluster_admin()
    return caller


async def team(request: Request, caller: Annotated[Caller, Depends(identity)]) -> UUID:
    """Return the caller's team. Reading needs a viewer, anything else a member: a route that says nothing is safe."""
    caller.needs(Role.VIEWER if request.method in READING else Role.MEMBER)
    return caller.team_id


READING = frozenset({"GET", "HEAD"})
Viewer = Annotated[Caller, Depends(require(Role.VIEWER))]
Member = Annotated[Caller, Depends(require(Role.MEMBER))]
Admin = Annotated[Caller, Depends(require(Role.ADMIN))]
ClusterAdmin = Annotated[Caller, Depends(cluster_admin)]
TeamId = Annotated[UUID, Depends(team)]
Limit = Annotated[int, Query(ge=1, le=200, description="Length of the page.")]
AnyLimit = Annotated[
    int | None, Query(ge=1, le=200, description="Length of the page; everything at once where it is left out.")
]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next_cursor` of the previous page.")]


class _StrictRequest(Request):
    """JSON as RFC 8259 has it: no NaN, bounded nesting, valid Unicode; and no U+0000, which no text column takes."""

    async def json(self) -> Any:
        """Return the parsed body; JSONDecodeError, which FastAPI turns into a validation error."""
        try:
            data = pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error
        _refuse_unstorable(data)
        return data


def _refuse_unstorable(data: Any) -> None:
    pending = [data]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and "\0" in item:
            raise json.JSONDecodeError("a string contains the character U+0000", "", 0)
        if isinstance(item, float) and not isfinite(item):
            raise json.JSONDecodeError("a number is too large", "", 0)
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item


async def read_body(request: Request) -> None:
    """Read the whole body, which the request keeps: a slow client then holds no turn and no transaction meanwhile.

    FastAPI itself reads only what it parses before the dependencies. Bounded by :class:`api.middleware.BodyLimit`.
    """
    try:
        await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400, "the client left before its body had arrived") from error


class StrictRoute(APIRoute):
    """A route that reads its body before anything else, and parses it strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, given a strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            strict_request = _StrictRequest(request.scope, request.receive)
            await read_body(strict_request)
            return await handler(strict_request)

        return strict


def plain_text(name: str, value: str | None) -> str | None:
    """Return a query parameter that goes to the database; InvalidInput where no text column takes it."""
    if value is not None and "\0" in value:
        raise InvalidInput(f"{name} contains the character U+0000", where=f"query.{name}")
    return value
