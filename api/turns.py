"""Give requests their turns at the database, so that no client makes all others wait.

A client is a key, or an address without one. It has so many requests in hand or waiting; one more is refused at once,
with 429, while those of others go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param

from cupilot.domain.errors import CupilotError
from cupilot.storage.people.teams import prefix_of

TURNS = 20
"""Requests that have a transaction at once. The threads and connections beyond these are for those who look briefly:
waiting for events, streams, probes."""
EACH = 100
"""Requests of one client that have or await a turn: at 10 ms each, others wait for a twentieth of a second at most."""


class Crowded(CupilotError):
    """The client has too many requests open at once."""

    code = "too_many_at_once"
    status = 429


class Turns:
    """The turns of one process."""

    def __init__(self, turns: int = TURNS, each: int = EACH) -> None:
        self._free = asyncio.Semaphore(turns)
        self._each = each
        self._open: Counter[str] = Counter()

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
            async with self._free:
                yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]


def client_of(request: Request) -> str:
    """Return whose request it is, by its key's visible start or its address."""
    _, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    return prefix_of(secret) or (request.client.host if request.client else "")
