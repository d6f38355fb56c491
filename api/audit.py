"""Writes the audit log: every request that changes something, and every one that is not allowed what it asks.

It is written when the outcome is certain, before the answer is sent; requests that end at about the same time are
written together, since a transaction costs as much as the entries in it. A log that cannot be written does not undo
what was done, and does not keep it secret: the entry then goes to the process's own log, as an error. Bodies, query
strings and keys are never part of it; settings and rights that changed are (:mod:`cupilot.storage.db.changes`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cupilot.domain.errors import CupilotError
from cupilot.domain.people import Caller
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import AuditEntry
from cupilot.storage.people.audit import add_entry

READING = frozenset({"GET", "HEAD", "OPTIONS"})
NOT_ALLOWED = frozenset({401, 403})
LONGEST_RESOURCE = 500
TOOLS = "/mcp"
"""Path at which a request's method says nothing: what its tools do are requests of their own, inside this process."""

_KEY_PREFIX = re.compile(r"Bearer (cpk_[0-9a-f]{8})_", re.IGNORECASE)

log = logging.getLogger("cupilot.audit")


@dataclass(frozen=True, eq=False)
class _Outcome:
    """A request that has ended."""

    fields: dict[str, Any]
    caller: Caller | None
    secret: str | None


class AuditLog:
    """Record the outcome of a request."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self.app = app
        self.database = database
        self._unwritten: list[_Outcome] = []
        self._writing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                changed = scope["method"] not in READING or scope["state"].get("changes")
                if (changed and scope["path"] != TOOLS) or status in NOT_ALLOWED:
                    fields = _fields(scope, message, status)
                    await self._record(_Outcome(fields, scope["state"].get("caller"), _secret(scope)))
            await send(message)

        await self.app(scope, receive, recorded)

    async def _record(self, outcome: _Outcome) -> None:
        """Return when the outcome is written: by this request or by another one, with those that came meanwhile."""
        self._unwritten.append(outcome)
        async with self._writing:
            outcomes, self._unwritten = self._unwritten, []
            if outcomes:
                await run_in_threadpool(self._write, outcomes)

    def _write(self, outcomes: Sequence[_Outcome]) -> None:
        """Write in one transaction; where one of them cannot be written, each by itself."""
        try:
            with self.database.transaction() as session:
                for outcome in outcomes:
                    add_entry(session, AuditEntry(**outcome.fields), outcome.caller, outcome.secret)
        except Exception as error:
            if len(outcomes) > 1 and not isinstance(error, CupilotError):
                for outcome in outcomes:
                    self._write([outcome])
                return
            for outcome in outcomes:
                log.error("audit entry not written (%s): %s", error, outcome.fields)


def _secret(scope: Scope) -> str | None:
    kind, _, secret = Headers(scope=scope).get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


def _fields(scope: Scope, message: Message, status: int) -> dict[str, Any]:
    made = Headers(raw=message["headers"]).get("location") if status in (201, 202) else None
    prefix = _KEY_PREFIX.match(Headers(scope=scope).get("authorization", ""))
    client = scope.get("client")
    return {
        "key_prefix": prefix[1] if prefix else None,
        "method": scope["method"][:16],
        "route": getattr(scope.get("route"), "path", "other"),
        "resource": (made or scope["path"]).replace("\0", "")[:LONGEST_RESOURCE],
        "status": status,
        "outcome": "done" if status < 400 else "refused" if status < 500 else "failed",
        "request_id": scope["state"]["request_id"],
        "address": client[0][:64] if client else None,
        # Of a request that failed at its commit, nothing has changed.
        "changes": scope["state"].get("changes") or None if status < 400 else None,
    }
