"""Server-sent events as they go over the wire (WHATWG HTML, section 9.2): the response that a client reads for long.

Each event is a message whose ``id`` is the event's, so that a client which lost its connection goes on after the last
one (``Last-Event-ID``). Lines that begin with a colon keep proxies from closing a quiet connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.metrics import Metrics
from api.streams import Subscription
from cupilot.schemas import EventView
from cupilot.storage.db.feed import FINAL_KINDS

MEDIA_TYPE = "text/event-stream"
RETRY_MS = 1_000
"""Time that a browser waits before it connects again."""
HEARTBEAT_SECONDS = 15.0
"""Below the idle limit of common proxies, 60 s, and of mobile networks. As often it is asked who may still read."""
SEND_SECONDS = 30.0
"""A client whose buffers stay full for so long is dropped."""
CLOSING_SECONDS = 0.2
"""Pause between looks for the last events of a job that has ended."""
_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"})
"""Characters that JSON has as they are, and at which some readers end a line, although server-sent events do not."""


class EventStream(Response):
    """A response that sends the subscription's events until its job has ended, the client left, or time is up."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        subscription: Subscription,
        after: int,
        max_seconds: float,
        metrics: Metrics,
        may_read: Callable[[], bool],
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._subscription = subscription
        self._after = after
        self._max_seconds = max_seconds
        self._metrics = metrics
        self._may_read = may_read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client."""
        watcher = asyncio.create_task(_disconnected(receive))
        server = asyncio.create_task(self._serve(send))
        with self._metrics.streams.track_inprogress(), self._metrics.waiting(scope):
            try:
                await asyncio.wait({watcher, server}, return_when=asyncio.FIRST_COMPLETED)
                if server.done():
                    server.result()
            finally:
                self._subscription.close()
                for task in (watcher, server):
                    task.cancel()
                await asyncio.gather(watcher, server, return_exceptions=True)

    async def _serve(self, send: Send) -> None:
        headers: Message = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(headers)
        try:
            await self._send(send, f"retry: {RETRY_MS}\n\n")
            ending = await self._events(send)
            await self._send(send, f"event: {ending}\ndata: {{}}\n\n")
        except TimeoutError:
            # Not ended as HTTP would have it: the client sees that something is missing, and asks again.
            self._metrics.dropped.labels("slow").inc()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> str:
        """Send events; why there will be no more: ``end`` of the job, or ``reconnect``.

        Who may not read any more is told to connect again, and is refused then.
        """
        # A job may have ended before: that is looked up once, and again whenever its last event has gone by.
        final_seen, closing = False, self._subscription.job is not None
        deadline, quiet_since, checked = time.monotonic() + self._max_seconds, time.monotonic(), time.monotonic()
        while time.monotonic() < deadline:
            events = await self._subscription.next(self._after, CLOSING_SECONDS if closing else HEARTBEAT_SECONDS)
            if time.monotonic() - checked >= HEARTBEAT_SECONDS:
                if not await asyncio.to_thread(self._may_read):
                    self._metrics.dropped.labels("refused").inc()
                    return "reconnect"
                checked = time.monotonic()
            if events:
                await self._send(send, "".join(map(_message, events)))
                self._after, quiet_since = events[-1].id, time.monotonic()
                final_seen = final_seen or self._ended(events)
                closing = final_seen
            elif closing:
                if await self._subscription.complete(self._after):
                    return "end"
                closing = final_seen
            if time.monotonic() - quiet_since >= HEARTBEAT_SECONDS:
                await self._send(send, ": still here\n\n")
                quiet_since = time.monotonic()
        self._metrics.dropped.labels("age").inc()
        return "reconnect"

    def _ended(self, events: Sequence[EventView]) -> bool:
        return self._subscription.job is not None and any(event.kind in FINAL_KINDS for event in events)

    async def _send(self, send: Send, text: str) -> None:
        await asyncio.wait_for(
            send({"type": "http.response.body", "body": text.encode(), "more_body": True}), SEND_SECONDS
        )


def _message(event: EventView) -> str:
    return f"id: {event.id}\ndata: {event.model_dump_json().translate(_ESCAPED)}\n\n"


async def _disconnected(receive: Receive) -> None:
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
