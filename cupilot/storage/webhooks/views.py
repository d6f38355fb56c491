"""Webhooks and their log as the REST boundary shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from cupilot.schemas import (
    AttemptView,
    DeliveryDetail,
    DeliveryPage,
    DeliveryView,
    WebhookPage,
    WebhookView,
    WebhookWithSecret,
)
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint

FAST_MS, SLOW_MS = 1_000, 5_000


def endpoint_view(session: Session, row: WebhookEndpoint) -> WebhookView:
    """Return a webhook, without its secret."""
    session.flush()
    session.refresh(row)
    return WebhookView(**_fields(row, _pending(session, [row.id]).get(row.id, 0)))


def endpoint_with_secret(session: Session, row: WebhookEndpoint) -> WebhookWithSecret:
    """Return a webhook with its secret: only for whoever has just made it."""
    return WebhookWithSecret(**endpoint_view(session, row).model_dump(), secret=row.secret)


def list_endpoints(session: Session, team: UUID, *, cursor: str | None, limit: int) -> WebhookPage:
    """Return the team's webhooks, newest first."""
    order = (WebhookEndpoint.created_at, WebhookEndpoint.id)
    query = scoped(select(WebhookEndpoint), team).order_by(*(column.desc() for column in order)).limit(limit + 1)
    if cursor:
        query = query.where(tuple_(*order) < decode_cursor(cursor))
    rows = session.scalars(query).all()
    page = rows[:limit]
    pending = _pending(session, [row.id for row in page])
    return WebhookPage(
        items=[WebhookView(**_fields(row, pending.get(row.id, 0))) for row in page],
        next_cursor=encode_cursor(page[-1].created_at, page[-1].id) if len(rows) > limit else None,
    )


def list_deliveries(
    session: Session, endpoint: WebhookEndpoint, *, state: str | None, cursor: str | None, limit: int
) -> DeliveryPage:
    """Return messages to a webhook, newest first; of one state where given."""
    order = (WebhookDelivery.created_at, WebhookDelivery.id)
    query = (
        _with_last_attempt()
        .where(WebhookDelivery.endpoint_id == endpoint.id)
        .order_by(*(column.desc() for column in order))
        .limit(limit + 1)
    )
    if state == "pending":
        query = query.where(WebhookDelivery.finished_at.is_(None))
    elif state is not None:
        query = query.where(WebhookDelivery.outcome == state)
    if cursor:
        query = query.where(tuple_(*order) < decode_cursor(cursor))
    rows = session.execute(query).all()
    page = rows[:limit]
    return DeliveryPage(
        items=[DeliveryView(**_delivery_fields(row, last)) for row, last in page],
        next_cursor=encode_cursor(page[-1][0].created_at, page[-1][0].id) if len(rows) > limit else None,
    )


def delivery_view(session: Session, row: WebhookDelivery) -> DeliveryDetail:
    """Return a message with its body and every attempt."""
    query = select(WebhookAttempt).where(WebhookAttempt.delivery_id == row.id).order_by(WebhookAttempt.number)
    log = session.scalars(query).all()
    return DeliveryDetail(
        **_delivery_fields(row, log[-1] if log else None),
        body=row.body,
        log=[_attempt_view(attempt) for attempt in log],
    )


def _with_last_attempt() -> Any:
    last = (WebhookAttempt.delivery_id == WebhookDelivery.id) & (WebhookAttempt.number == WebhookDelivery.attempts)
    return select(WebhookDelivery, WebhookAttempt).outerjoin(WebhookAttempt, last)


def _pending(session: Session, endpoints: Sequence[UUID]) -> dict[UUID, int]:
    query = (
        select(WebhookDelivery.endpoint_id, func.count())
        .where(WebhookDelivery.endpoint_id.in_(endpoints), WebhookDelivery.finished_at.is_(None))
        .group_by(WebhookDelivery.endpoint_id)
    )
    return {endpoint: count for endpoint, count in session.execute(query)}  # noqa: C416 - rows are no pairs to mypy


def _fields(row: WebhookEndpoint, pending: int) -> dict[str, Any]:
    return {
        "id": row.id,
        "url": row.url,
        "events": row.events,
        "description": row.description,
        "enabled": row.enabled,
        "disabled_reason": row.disabled_reason,
        "failing_since": row.failing_since,
        "pending": pending,
        "previous_secret_until": row.previous_until,
        "created_at": row.created_at,
    }


def _delivery_fields(row: WebhookDelivery, last: WebhookAttempt | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "event": row.event_id,
        "state": row.outcome or "pending",
        "attempts": row.attempts,
        "last_outcome": last.outcome if last else None,
        "last_status": last.status if last else None,
        "next_attempt_at": None if row.finished_at else row.next_attempt_at,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


def _attempt_view(row: WebhookAttempt) -> AttemptView:
    latency = None
    if row.milliseconds is not None:
        latency = "fast" if row.milliseconds < FAST_MS else "slow" if row.milliseconds < SLOW_MS else "very_slow"
    return AttemptView(
        number=row.number,
        outcome=row.outcome,
        status=row.status,
        milliseconds=row.milliseconds,
        latency=latency,
        excerpt=row.excerpt,
        started_at=row.started_at,
    )
