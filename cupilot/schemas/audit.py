"""The audit log: requests by caller."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from cupilot.schemas.base import Response


class AuditEntryView(Response):
    """One request that changed something, or was not allowed to."""

    id: int
    at: datetime
    team: UUID | None = None
    principal: str | None = None
    """User or service account; null for a request without a valid key."""
    key_prefix: str | None = None
    """The visible start of the key that was sent, valid or not."""
    method: str
    route: str
    """The route's template, e.g. ``/v1/jobs/{job}/cancel``."""
    resource: str
    """Object that was asked for or made."""
    status: int
    outcome: str
    """``done``, ``refused`` (4xx) or ``failed`` (5xx)."""
    request_id: str
    address: str | None = None
    changes: Annotated[dict[str, list[Any]] | None, Field(examples=[{"member.role": ["member", "admin"]}])] = None
    """Settings and rights that it changed: ``{field: [before, after]}``; of a secret only that it changed."""


class AuditPage(Response):
    """Entries, newest first."""

    items: list[AuditEntryView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_before: int | None = None
    """The same for ``before``, which ``cursor`` replaces."""
