"""``/mcp``: the tools for coding agents over streamable HTTP, with the API's own keys.

Each tool calls REST inside this process with the caller's key, so that rights, limits, the audit log and verdicts are
those of REST. No session is kept: any replica can take any request. The first request has the SDK imported, a fifth of
what the API would import as it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI
from fastapi.security.utils import get_authorization_scheme_param
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from api.errors import render
from cupilot.client import AsyncClient
from cupilot.storage.db.engine import Database
from cupilot.storage.people.teams import identify

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
INSIDE = "http://inside"


class McpEndpoint:
    """Answers requests of MCP clients that send a valid key."""

    def __init__(self, app: FastAPI, database: Database) -> None:
        self._app = app
        self._database = database
        self._sessions: StreamableHTTPSessionManager | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve while this context is open; once."""
        yield
        if self._serving is not None:
            self._serving.cancel()
            with suppress(asyncio.CancelledError):
                await self._serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        secret = _secret(scope)
        if secret is None or not await run_in_threadpool(self._known, secret):
            refusal = render(
                401,
                "unauthorized",
                "this needs an API key" if secret is None else "the API key is unknown, has expired or was revoked",
                scope["state"]["request_id"],
                hint="send the header Authorization: Bearer cpk_...",
            )
            refusal.headers["WWW-Authenticate"] = "Bearer"
            await refusal(scope, receive, send)
            return
        await (await self._running()).handle_request(scope, receive, send)

    async def _running(self) -> StreamableHTTPSessionManager:
        """Return what answers; it is made for the first request."""
        async with self._starting:
            if self._sessions is None:
                sessions, begun = await run_in_threadpool(self._made), asyncio.Event()
                self._serving = asyncio.create_task(self._serve(sessions, begun))
                await begun.wait()
                self._sessions = sessions
        return self._sessions

    def _made(self) -> StreamableHTTPSessionManager:
        from mcp.server.transport_security import TransportSecuritySettings

        from cupilot.mcp.server import build

        server = build(self._connect)
        # Hosts are not checked: a request needs a key, which no foreign page can send along.
        server.streamable_http_app(
            streamable_http_path=PATH,
            stateless_http=True,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        return server.session_manager

    @staticmethod
    async def _serve(sessions: StreamableHTTPSessionManager, begun: asyncio.Event) -> None:
        async with sessions.run():
            begun.set()
            await asyncio.Event().wait()  # until it is cancelled

    def _known(self, secret: str) -> bool:
        with self._database.transaction() as session:
            return identify(session, secret) is not None

    def _connect(self, ctx: Context[Any, Any]) -> AsyncClient:
        request = ctx.request_context.request
        assert request is not None
        return _InsideClient(self._app, _secret(request.scope), request.scope.get("client"))


class _InsideClient(AsyncClient):
    """A client whose requests do not leave the process."""

    def __init__(self, app: FastAPI, api_key: str | None, address: tuple[str, int] | None) -> None:
        self._transport = httpx.ASGITransport(app, client=address or ("unknown", 0))
        super().__init__(INSIDE, api_key, retries=0)

    def _connect(self, **options: Any) -> None:
        super()._connect(transport=self._transport, **options)


def mount(app: FastAPI, database: Database) -> McpEndpoint:
    """Serve the tools at :data:`PATH` of the application, once its lifespan runs them."""
    endpoint = McpEndpoint(app, database)
    app.router.routes.append(Route(PATH, endpoint=endpoint, include_in_schema=False))
    return endpoint


def _secret(scope: Scope) -> str | None:
    scheme, secret = get_authorization_scheme_param(Headers(scope=scope).get("authorization"))
    return secret if scheme.lower() == "bearer" and secret else None
