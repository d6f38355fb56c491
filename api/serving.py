"""Serve the API with uvicorn, with deadlines for slow clients and a limit of connections by address.

A connection that has not sent the whole head of a request by its deadline is closed, and so is one beyond an address's
limit, without an answer: an answer would wait for whoever does not read. Bodies have a deadline in
:mod:`api.middleware`. Connections of configured proxies, which carry many clients, are not counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from cupilot.domain.webhooks import networks
from cupilot.settings import Settings

HEAD_SECONDS = 10.0
"""Time for the head of a request, from its first byte or from the opening of its connection."""
KEEP_ALIVE_SECONDS = 75
"""A connection without a request is kept longer than clients keep theirs, 5 s to a minute: a request that met a closing
connection would be lost."""


class Admission:
    """The connections of each address."""

    def __init__(self, limit: int, proxies: str) -> None:
        """``limit`` 0 is none; ``proxies`` as in :attr:`cupilot.settings.Settings.trusted_proxies`."""
        self._limit = limit
        self._proxies = networks(proxies)
        self._open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a connection that was opened; return False where it is one too many."""
        self._open[address] += 1
        return not self._limit or self._open[address] <= self._limit or self._is_proxy(address)

    def leave(self, address: str) -> None:
        """Count a connection that was closed."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _is_proxy(self, address: str) -> bool:
        try:
            peer = ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self._proxies if network.version == peer.version)


class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol with :class:`Admission` and a deadline for the head of each request."""

    def __init__(self, *arguments: Any, admission: Admission, head_seconds: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._admission = admission
        self._head_seconds = head_seconds
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin, or close at once what is one too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        if self._admission.enter(self._address):
            self._expect_head()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget_head()
        self._admission.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the first byte of a further request begins its deadline."""
        super().data_received(data)
        if self._in_request():
            self._forget_head()
        elif self._deadline is None:
            self._expect_head()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self._head_seconds, self._give_up)

    def _forget_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self._in_request():
            self.transport.abort()


def server_config(app: FastAPI, settings: Settings, *, head_seconds: float = HEAD_SECONDS) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    admission = Admission(settings.connections_per_address, settings.trusted_proxies)
    return uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        http=partial(BoundedProtocol, admission=admission, head_seconds=head_seconds),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or None,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        backlog=2_048,
    )
