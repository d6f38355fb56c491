"""The audit log: written once, read by admins, deleted only after its retention."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from cupilot.domain.people import Caller
from cupilot.schemas import AuditEntryView, AuditPage
from cupilot.storage.db.base import Json
from cupilot.storage.db.cursor import cut, decode_key, encode_key
from cupilot.storage.db.tables.people import AuditEntry
from cupilot.storage.people.teams import identify

PRUNED_AT_ONCE = 20_000
"""A second's work. A retention that was shortened takes many rounds, each of them within a statement's time limit."""


@dataclass(frozen=True)
class AuditFilter:
    """Filter of a list; an empty one lists everything."""

    principal: str | None = None
    key_prefix: str | None = None
    route: str | None = None
    resource: str | None = None
    """Its beginning."""
    outcome: str | None = None
    request_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def add_entry(session: Session, entry: AuditEntry, caller: Caller | None, secret: str | None) -> None:
    """Append. Who asked is the ``caller``, where the request had found out, else whose the key is that was sent."""
    if caller is None and secret:
        caller = identify(session, secret)
    if caller is not None:
        entry.team_id, entry.principal, entry.key_prefix = caller.team_id, caller.user, caller.key_prefix
    session.add(entry)


def add_own_entry(
    session: Session,
    principal: str,
    method: str,
    route: str,
    resource: str,
    *,
    team: uuid.UUID | None = None,
    changes: Json | None = None,
) -> None:
    """Append what the service does of itself, or by a command on its own machine: no request, no key, no address."""
    session.add(
        AuditEntry(
            team_id=team,
            principal=principal,
            method=method,
            route=route,
            resource=resource,
            status=200,
            outcome="done",
            request_id="",
            changes=changes or None,
        )
    )


def list_entries(
    session: Session,
    team: uuid.UUID | None,
    filters: AuditFilter,
    *,
    cursor: str | None = None,
    before: int | None = None,
    limit: int,
) -> AuditPage:
    """Return entries, newest first, behind ``cursor`` or with ids below ``before``: of a team, or of all where ``team``
    is None."""
    if cursor is not None:
        (before,) = decode_key(cursor, "audit", int)
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    if team is not None:
        query = query.where(AuditEntry.team_id == team)
    for name in ("principal", "key_prefix", "route", "outcome", "request_id"):
        value = getattr(filters, name)
        if value is not None:
            query = query.where(getattr(AuditEntry, name) == value)
    if filters.resource is not None:
        query = query.where(AuditEntry.resource.startswith(filters.resource, autoescape=True))
    if filters.since is not None:
        query = query.where(AuditEntry.at >= filters.since)
    if filters.until is not None:
        query = query.where(AuditEntry.at < filters.until)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    page, following = cut(session.scalars(query).all(), limit, lambda row: encode_key("audit", row.id))
    return AuditPage(
        items=[_view(row) for row in page], next_cursor=following, next_before=page[-1].id if following else None
    )


def prune_audit(session: Session, kept: timedelta) -> None:
    """Forget entries older than ``kept``, the oldest first, :data:`PRUNED_AT_ONCE` at most.

    It is the one deletion that the table's trigger lets pass.
    """
    old = select(AuditEntry.id).where(AuditEntry.at < func.now() - kept).order_by(AuditEntry.at).limit(PRUNED_AT_ONCE)
    session.execute(text("SELECT set_config('cupilot.audit_prune', '1', true)"))
    session.execute(delete(AuditEntry).where(AuditEntry.id.in_(old)).execution_options(synchronize_session=False))
    session.execute(text("SELECT set_config('cupilot.audit_prune', '', true)"))


def _view(row: AuditEntry) -> AuditEntryView:
    return AuditEntryView(
        id=row.id,
        at=row.at,
        team=row.team_id,
        principal=row.principal,
        key_prefix=row.key_prefix,
        method=row.method,
        route=row.route,
        resource=row.resource,
        status=row.status,
        outcome=row.outcome,
        request_id=row.request_id,
        address=row.address,
        changes=row.changes,
    )
