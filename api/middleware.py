"""Wrap every request: a request id, a bound on its body, and no exception that leaves the process.

Pure ASGI, so that a body is refused before anything of it is kept or parsed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import BodyTooLarge, BodyTooSlow, render, too_large
from api.metrics import WAITED, Metrics
from cupilot import tracing
from cupilot.logs import log_context

REQUEST_ID_HEADER = "X-Request-ID"
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " frame-ancestors 'none'"
)
"""Keeps browsers at /docs from any other origin; the page starts Swagger UI from an inline script."""

_ACCEPTED_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")

log = logging.getLogger("cupilot.api")


class RequestContext:
    """Give a request its id (the caller's, if it is valid), log and count it, turn a bug into a plain 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = sent if _ACCEPTED_ID.match(sent) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        parent = Headers(scope=scope).get("traceparent")
        opened = tracing.span(scope["method"], parent=parent, request=request_id, path=scope["path"])
        with log_context(request=request_id), self.metrics.in_flight.track_inprogress(), opened:
            await self._answer(scope, receive, send, request_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        status, streamed = 0, False
        started = time.monotonic()

        async def with_id(message: Message) -> None:
            nonlocal status, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                streamed = headers.get("content-type", "").startswith("text/event-stream")
                headers[REQUEST_ID_HEADER] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            log.exception("%s %s failed request=%s", scope["method"], scope["path"], request_id)
            if status:
                raise
            response = render(
                500,
                "internal_error",
                "the service failed on this request; nothing was changed by it",
                request_id,
                hint="report the request id",
            )
            await response(scope, receive, with_id)
        seconds = time.monotonic() - started
        log.info("%s %s %s %.1f ms request=%s", scope["method"], scope["path"], status, seconds * 1e3, request_id)
        # By template: paths hold ids, and each would be a time series, or an operation of a trace, of its own.
        route = getattr(scope.get("route"), "path", "other")
        tracing.rename(f"{scope['method']} {route}", status=status)
        if not streamed:
            worked = seconds - scope["state"].get(WAITED, 0.0)
            self.metrics.requests.labels(scope["method"], route, str(status)).observe(worked)


BODY_SECONDS = 30.0
"""Time for a whole body. A megabyte, the most that is accepted by default, takes so long at 280 kbit/s."""


class BodyLimit:
    """Refuses a body above ``limit`` bytes: by its Content-Length before a byte is read, else while it arrives; and one
    that has not arrived after ``seconds``.

    Starlette's own limiter answers in plain text once a Content-Length is too large; this one keeps the envelope.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float = BODY_SECONDS) -> None:
        self.app = app
        self.limit = limit
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self.limit:
            response = too_large(self.limit, scope["state"]["request_id"])
            await response(scope, receive, send)
            return
        received, arrived = 0, False
        deadline = asyncio.get_running_loop().time() + self.seconds

        async def bounded() -> Message:
            nonlocal received, arrived
            try:
                # Once the body is there, the next message is that the client has gone, which has no deadline.
                async with asyncio.timeout_at(None if arrived else deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow(self.seconds) from None
            if message["type"] == "http.request":
                arrived = not message.get("more_body", False)
                received += len(message.get("body", b""))
                if received > self.limit:
                    raise BodyTooLarge(self.limit)
            return message

        await self.app(scope, bounded, send)
