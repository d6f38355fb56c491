"""Rate limits of HTTP requests, reported as draft-ietf-httpapi-ratelimit-headers-10 has it (``RateLimit-Policy``,
``RateLimit``), and refused as RFC 6585 has it (429 with ``Retry-After``).

Before anything else of a request is done: by its key, or by its address where it has none or needs none, since a key
that nobody looks at may be made up. Wrong keys are counted by address too, so that guessing keys is no way around; an
address that has sent too many is told no more about further wrong ones, while right ones from it, which may be those of
others behind the same proxy, are served. Pages bring their key in a cookie, and are refused with a page. Probes and the
pages' own files are never limited.
"""

from __future__ import annotations

import hashlib

from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import domain_error
from api.metrics import Metrics
from api.pages import visits
from api.rate_limiter import WINDOW_SECONDS, Limiter, RateLimitState
from cupilot.domain.errors import CupilotError
from cupilot.settings import Settings
from cupilot.storage.people.teams import prefix_of

UNLIMITED = frozenset({"/healthz", "/readyz", "/metrics"})
OPEN = frozenset({"/v1/version"} | {f"/ui/{name}" for name in ("jobs", "login", "logout", "sso", "sso/callback")})
"""Of the routes below :data:`KEYED` and of the pages, those that refuse no key."""
KEYED = "/v1/"
"""Prefix of the paths that authenticate by key; pages use a cookie."""
FILES = f"{visits.HOME}/static/"
UNAUTHORIZED = 401


class RateLimited(CupilotError):
    """A key or an address has sent too many requests."""

    code = "rate_limited"
    status = 429


class RateLimits:
    """Middleware that refuses requests above the limit, and tells every client how much of it is left."""

    def __init__(self, app: ASGIApp, settings: Settings, limiter: Limiter, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics
        self.by_key = settings.rate_limit_key
        self.by_address = settings.rate_limit_address
        self.limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] in UNLIMITED or scope["path"].startswith(FILES):
            await self.app(scope, receive, send)
            return
        key = _key(scope)
        address = (scope.get("client") or ("unknown", 0))[0]
        name, limit = ("key", self.by_key) if key else ("address", self.by_address)
        standing = None
        if limit:
            # Not the key itself: whoever reads Redis must not find keys there.
            client = f"key:{hashlib.sha256(key.encode()).hexdigest()[:32]}" if key else f"address:{address}"
            standing = await self.limiter.take(client, limit)
            if not standing.allowed:
                await self._refuse(scope, receive, send, name, standing)
                return
        refused = False

        async def send_with_headers(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                wrong = message["status"] == UNAUTHORIZED or scope["state"].get("signed_out")
                if key and self.by_address and wrong:
                    guessed = await self.limiter.take(f"failures:{address}", self.by_address)
                    if not guessed.allowed:
                        refused = True
                        await self._refuse(scope, receive, send, "failures", guessed)
                        return
                if standing is not None:
                    _set_headers(MutableHeaders(scope=message), name, standing)
            if not refused:
                await send(message)

        await self.app(scope, receive, send_with_headers)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, name: str, standing: RateLimitState) -> None:
        self.metrics.limited.labels(name).inc()
        whose = "this API key" if name == "key" else "this address"
        what = "wrong keys" if name == "failures" else "requests"
        error = RateLimited(
            f"too many {what} from {whose}: {standing.limit} a minute",
            hint=f"try again in {standing.retry_seconds} s; wait for events instead of asking again and again",
        )
        response = visits.failed(error) if _is_page(scope) else domain_error(error, scope["state"]["request_id"])
        response.headers["Retry-After"] = str(standing.retry_seconds)
        _set_headers(response.headers, name, standing)
        await response(scope, receive, send)


def _key(scope: Scope) -> str | None:
    """Return the key that the request's route will look at, read as the route reads it; None where that is none."""
    path = scope["path"]
    if path in OPEN:
        return None
    if path.startswith(KEYED):
        scheme, secret = get_authorization_scheme_param(Headers(scope=scope).get("authorization"))
        return secret if scheme.lower() == "bearer" and prefix_of(secret) else None
    secret = HTTPConnection(scope).cookies.get(visits.COOKIE, "") if _is_page(scope) else ""
    return secret if prefix_of(secret) else None


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == visits.HOME or path.startswith(f"{visits.HOME}/")


def _set_headers(headers: MutableHeaders, name: str, standing: RateLimitState) -> None:
    headers["RateLimit-Policy"] = f'"{name}";q={standing.limit};w={WINDOW_SECONDS:.0f}'
    headers["RateLimit"] = f'"{name}";r={standing.remaining};t={standing.reset_seconds}'
