"""Give requests their turns at the database in rotation between clients, so that none makes the others wait.

A client is a key, or an address without one. It has so many requests in hand or waiting; one more is refused at once,
with 429, while those of others go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param

from cupilot.domain.errors import CupilotError
from cupilot.storage.people.teams import prefix_of

TURNS = 20
"""Requests that have a transaction at once. The threads and connections beyond these are for those who look briefly:
waiting for events, streams, probes."""
EACH = 256
"""Requests of one client that have or await a turn: a few seconds of work for one process."""


class Crowded(CupilotError):
    """The client has too many requests open at once."""

    code = "too_many_at_once"
    status = 429


class Turns:
    """The turns of one process."""

    def __init__(self, turns: int = TURNS, each: int = EACH) -> None:
        self._free = turns
        self._each = each
        self._open: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Those who wait, by client; the first client is the next."""

    @asynccontextmanager
    async def take(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it; raises :class:`Crowded` where the client has too many already."""
        if self._open[client] >= self._each:
            raise Crowded(
                f"this client has {self._each} requests open at once, which is the most that is accepted",
                hint="send the next one when one of them is answered",
            )
        self._open[client] += 1
        try:
            await self._acquire(client)
            try:
                yield
            finally:
                self._pass_on()
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    async def _acquire(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a turn that is over to the next client, which then is the last."""
        while self._waiting:
            client, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            self._waiting.move_to_end(client)
            if not turns:
                del self._waiting[client]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def client_of(request: Request) -> str:
    """Return whose request it is, by its key's visible start or its address."""
    _, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    return prefix_of(secret) or (request.client.host if request.client else "")
