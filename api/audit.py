"""Writes the audit log: every request that changes something, and every one that is not allowed what it asks.

It is written when the outcome is certain, before the answer is sent. A log that cannot be written does not undo what
was done, and does not keep it secret: the entry then goes to the process's own log, as an error. Bodies, query strings
and keys are never part of it; settings and rights that changed are (:mod:`cupilot.storage.db.changes`).
"""

from __future__ import annotations

import logging
import re
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cupilot.domain.errors import CupilotError
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


class AuditLog:
    """Record the outcome of a request."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self.app = app
        self.database = database

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
                    await run_in_threadpool(self._record, scope, _fields(scope, message, status))
            await send(message)

        await self.app(scope, receive, recorded)

    def _record(self, scope: Scope, fields: dict[str, Any]) -> None:
        try:
            with self.database.transaction() as session:
                add_entry(session, AuditEntry(**fields), scope["state"].get("caller"), _secret(scope))
        except CupilotError as error:
            log.error("audit entry not written (%s): %s", error, fields)


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
