"""Send one message to an address that a user named, and trust nothing about it.

The name is looked up once, every address is checked, and the connection goes to a checked address itself: a name that
changes its answer between check and connection (DNS rebinding) gains nothing. TLS is verified against the name. No
proxy, no redirect; one deadline over everything; of the answer, only the beginning is read.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from cupilot import __version__
from cupilot.domain.webhooks import Network, may_call
from cupilot.storage.webhooks.deliveries import Result

EXCERPT_BYTES = 1_024


class RefusedAddress(Exception):
    """The name stands for an address that may not be called."""


@dataclass
class _Deadline:
    """Ends a connection that takes too long, wherever it hangs; a slow trickle of bytes included."""

    at: float
    passed: bool = False
    _timer: threading.Timer | None = None

    def left(self) -> float:
        left = self.at - time.monotonic()
        if left <= 0:
            self.passed = True
            raise TimeoutError("no answer in time")
        return left

    def watch(self, raw: socket.socket) -> None:
        def cut() -> None:
            self.passed = True
            with suppress(OSError):
                raw.shutdown(socket.SHUT_RDWR)

        self._timer = threading.Timer(self.left(), cut)
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Pinned(http.client.HTTPConnection):
    """A connection for a name, to addresses that were found before."""

    def __init__(self, host: str, port: int, addresses: Sequence[str], deadline: _Deadline, *, tls: bool) -> None:
        super().__init__(host, port)
        self._addresses = addresses
        self._deadline = deadline
        self._tls = tls

    def connect(self) -> None:
        """Connect to the first address that answers."""
        raw = self._reach()
        raw.settimeout(self._deadline.left())
        self._deadline.watch(raw)
        self.sock = _tls().wrap_socket(raw, server_hostname=self.host) if self._tls else raw

    def _reach(self) -> socket.socket:
        for number, address in enumerate(self._addresses, start=1):
            try:
                return socket.create_connection((address, self.port), timeout=self._deadline.left())
            except OSError:
                if number == len(self._addresses):
                    raise
        raise OSError("the name has no address")


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, seconds: float, allowed: Sequence[Network] = ()
) -> Result:
    """POST the body; any outcome is a result. ``allowed`` are networks that may be called although private."""
    started = time.monotonic()
    deadline = _Deadline(started + seconds)
    status, outcome, excerpt = None, "ok", None
    connection = None
    try:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        host = parts.hostname or ""
        addresses = resolve(host, port, allowed, listed_only=not tls)
        connection = _Pinned(host, port, addresses, deadline, tls=tls)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        own = {"Content-Type": "application/json", "User-Agent": f"cupilot-webhooks/{__version__}"}
        connection.request("POST", target, body, {**own, **headers, "Connection": "close"})
        response = connection.getresponse()
        status = response.status
        excerpt = _plain(response.read(EXCERPT_BYTES))
        outcome = "ok" if 200 <= status < 300 else "redirect" if 300 <= status < 400 else "http_error"
    except RefusedAddress as error:
        outcome, excerpt = "refused_address", str(error)
    except ssl.SSLError as error:
        outcome, excerpt = ("timeout", None) if deadline.passed else ("tls_error", f"TLS: {error.reason or error}")
    except socket.gaierror:
        outcome, excerpt = "unknown_host", "the name cannot be looked up"
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = deadline.passed or isinstance(error, TimeoutError)
        outcome, excerpt = ("timeout", None) if late else ("connection_error", type(error).__name__)
    finally:
        deadline.done()
        if connection is not None:
            connection.close()
    if deadline.passed:
        # Cut off in the middle of its headers, an answer looks like one that ends there.
        outcome, status = "timeout", None
    return Result(outcome, status, round((time.monotonic() - started) * 1000), excerpt)


def resolve(host: str, port: int, allowed: Sequence[Network], *, listed_only: bool = False) -> list[str]:
    """Return the name's addresses; raise :class:`RefusedAddress` where a single one of them may not be called.

    ``listed_only``: without TLS nothing but what the operator has listed.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in entries))
    for text in addresses:
        address = ip_address(text)
        listed = any(address in network for network in allowed if network.version == address.version)
        if not listed and (listed_only or not may_call(address, allowed)):
            raise RefusedAddress(f"{host} stands for {text}, which may not be called")
    return addresses


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _plain(data: bytes) -> str:
    """Return readable text: what a receiver answers is shown to people."""
    return "".join(
        character if character.isprintable() or character == "\n" else " "
        for character in data.decode("utf-8", "replace")
    ).strip()
