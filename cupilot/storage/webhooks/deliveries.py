"""Webhook endpoints and their deliveries. Events are the outbox: a delivery is made from each settled event once.

:func:`fan_out` moves a position over the events in the transaction that makes the deliveries, so that none is missed or
made twice. :func:`claim` counts an attempt before it is made, and :func:`record` accepts a result only for the attempt
that is still the last one; an attempt whose process died is due again when its lease ends. Sending is the workers'.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain import webhooks
from cupilot.domain.errors import Conflict, NotFound
from cupilot.schemas import EventView
from cupilot.storage.db.feed import CHANNEL, events_after, last_settled_id
from cupilot.storage.db.json_columns import to_json
from cupilot.storage.db.scope import scoped
from cupilot.storage.db.tables.jobs import Event
from cupilot.storage.db.tables.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookPosition

PAGE = 500
SECRET_OVERLAP = timedelta(hours=24)
"""Time for which messages are also signed with a replaced secret."""
MAX_ENDPOINTS = 20
DELIVERED, FAILED = "delivered", "failed"
GONE = 410
"""The receiver says that it wants no more (Standard Webhooks)."""
PRUNED_AT_ONCE = 20_000
"""A second's work. A retention that was shortened takes many rounds, each of them within a statement's time limit."""


class TooManyEndpoints(Conflict):
    """The team has reached its limit of webhooks."""

    code = "too_many_webhooks"


@dataclass(frozen=True)
class Attempt:
    """Delivery that is due, ready to send."""

    delivery: uuid.UUID
    endpoint: uuid.UUID
    number: int
    url: str
    secrets: Sequence[str]
    body: str


@dataclass(frozen=True)
class Result:
    """Outcome of an attempt."""

    outcome: str
    """``ok``, or a word for what went wrong."""
    status: int | None
    milliseconds: int
    excerpt: str | None


def create_endpoint(
    session: Session, team: uuid.UUID, url: str, events: Sequence[str], description: str
) -> WebhookEndpoint:
    """Make a new endpoint, with a secret; events from now on are sent to it."""
    _ensure_position(session)
    count = select(func.count()).where(WebhookEndpoint.team_id == team)
    if session.execute(count).scalar_one() >= MAX_ENDPOINTS:
        raise TooManyEndpoints(f"a team has at most {MAX_ENDPOINTS} webhooks", hint="delete one that is not used")
    row = WebhookEndpoint(
        team_id=team,
        url=url,
        events=list(events),
        description=description,
        secret=webhooks.new_secret(),
        after_event=last_settled_id(session),
    )
    session.add(row)
    session.flush()
    return row


def get_endpoint(session: Session, team: uuid.UUID, endpoint: uuid.UUID, *, lock: bool = False) -> WebhookEndpoint:
    """Return one of the team's endpoints; NotFound for any other."""
    query = scoped(select(WebhookEndpoint), team).where(WebhookEndpoint.id == endpoint)
    row = session.scalars(query.with_for_update(key_share=True) if lock else query).one_or_none()
    if row is None:
        raise NotFound("no such webhook", hint="GET /v1/webhooks lists them", where="webhook")
    return row


def change_endpoint(
    session: Session,
    team: uuid.UUID,
    endpoint: uuid.UUID,
    *,
    url: str | None,
    allowed: Sequence[webhooks.Network],
    events: Sequence[str] | None,
    description: str | None,
    enabled: bool | None,
) -> WebhookEndpoint:
    """Change what is not None of one of the team's endpoints; NotFound for any other.

    ``allowed`` are private networks that a URL may lead to; raises InvalidInput for a URL that may not be called.
    """
    row = get_endpoint(session, team, endpoint, lock=True)
    row.url = row.url if url is None else webhooks.check_url(url, allowed)
    row.events = row.events if events is None else list(events)
    row.description = row.description if description is None else description
    if enabled is True and not row.enabled:
        enable(row)
    elif enabled is False and row.enabled:
        disable(row, "requested")
    return row


def delete_endpoint(session: Session, team: uuid.UUID, endpoint: uuid.UUID) -> None:
    """Remove it with its log; what is under way is not recorded any more."""
    session.delete(get_endpoint(session, team, endpoint, lock=True))


def rotate_secret(session: Session, team: uuid.UUID, endpoint: uuid.UUID) -> WebhookEndpoint:
    """Sign with a new secret from now on, and with the old one too for a day; NotFound for another team's endpoint."""
    row = get_endpoint(session, team, endpoint, lock=True)
    row.previous_secret, row.secret = row.secret, webhooks.new_secret()
    row.previous_until = func.now() + SECRET_OVERLAP
    return row


def enable(row: WebhookEndpoint) -> None:
    """Send again, beginning with what still waits; earlier failures are forgotten."""
    row.enabled, row.disabled_reason, row.failing_since = True, None, None


def disable(row: WebhookEndpoint, reason: str) -> None:
    """Send nothing, and make no new deliveries, until it is enabled again."""
    row.enabled, row.disabled_reason = False, reason


def ping(session: Session, row: WebhookEndpoint) -> WebhookDelivery:
    """Queue a test message; Conflict for a disabled endpoint."""
    _check_enabled(row)
    now = session.execute(select(func.now())).scalar_one()
    body = {"type": webhooks.PING, "timestamp": now.isoformat(), "data": {"webhook": str(row.id)}}
    made = WebhookDelivery(endpoint_id=row.id, kind=webhooks.PING, body=to_json(body), max_attempts=1, event_id=None)
    session.add(made)
    session.flush()
    _wake(session)
    return made


def redeliver(session: Session, row: WebhookEndpoint, delivery: uuid.UUID) -> WebhookDelivery:
    """Queue a message again, with its old id; Conflict where it is still being tried."""
    _check_enabled(row)
    message = get_delivery(session, row, delivery, lock=True)
    if message.finished_at is None:
        raise Conflict("the message is still being delivered", hint="its log shows the time of the next attempt")
    message.outcome, message.finished_at = None, None
    message.max_attempts = message.attempts + webhooks.MAX_ATTEMPTS
    message.next_attempt_at = func.now()
    session.flush()
    session.refresh(message)
    _wake(session)
    return message


def get_delivery(session: Session, row: WebhookEndpoint, delivery: uuid.UUID, *, lock: bool = False) -> WebhookDelivery:
    """Return a delivery of this endpoint; NotFound for any other."""
    query = select(WebhookDelivery).where(WebhookDelivery.id == delivery, WebhookDelivery.endpoint_id == row.id)
    message = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if message is None:
        raise NotFound("no such delivery of this webhook", where="delivery")
    return message


def fan_out(session: Session) -> bool:
    """Make deliveries of what happened since the last time; whether there is more."""
    up_to = last_settled_id(session)
    position = _position(session)
    if up_to <= position.event_id:
        return False
    anybody = session.execute(select(select(WebhookEndpoint.id).where(WebhookEndpoint.enabled).exists())).scalar_one()
    rows = events_after(session, position.event_id, up_to, PAGE) if anybody else []
    endpoints = session.scalars(
        select(WebhookEndpoint).where(WebhookEndpoint.enabled, WebhookEndpoint.team_id.in_({team for _, team in rows}))
    ).all()
    made = [
        {
            "id": uuid.uuid4(),
            "endpoint_id": endpoint.id,
            "event_id": event.id,
            "kind": event.kind,
            "body": _body(event),
            "max_attempts": webhooks.MAX_ATTEMPTS,
        }
        for event, team in rows
        for endpoint in endpoints
        if endpoint.team_id == team and _is_after(event, endpoint) and webhooks.wants(endpoint.events, event.kind)
    ]
    if made:
        session.execute(insert(WebhookDelivery).values(made).on_conflict_do_nothing())
    full = len(rows) == PAGE
    position.event_id = rows[-1][0].id if full else up_to
    return full


def _is_after(event: Event, endpoint: WebhookEndpoint) -> bool:
    """Return whether an event came after the endpoint was made, whatever was done to the clock meanwhile."""
    if endpoint.after_event is None:
        return event.created_at >= endpoint.created_at
    return event.id > endpoint.after_event


def claim(
    session: Session, limit: int, per_endpoint: int, busy: Collection[uuid.UUID], lease: timedelta
) -> Sequence[Attempt]:
    """Claim up to ``limit`` due deliveries, the longest due first, none of a ``busy`` endpoint.

    Each counts as tried from now on, and is due again after ``lease`` unless a result is recorded.
    """
    turn = func.row_number().over(
        partition_by=WebhookDelivery.endpoint_id, order_by=(WebhookDelivery.next_attempt_at, WebhookDelivery.event_id)
    )
    is_due = and_(WebhookDelivery.finished_at.is_(None), _is_time(lease))
    due = (
        select(WebhookDelivery.id, WebhookDelivery.next_attempt_at.label("due_at"), turn.label("turn"))
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(is_due, WebhookEndpoint.enabled, WebhookEndpoint.id.not_in(list(busy)))
        .subquery()
    )
    chosen = select(due.c.id).where(due.c.turn <= per_endpoint).order_by(due.c.due_at).limit(limit)
    locked = session.execute(
        select(WebhookDelivery, WebhookEndpoint)
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(WebhookDelivery.id.in_(session.scalars(chosen).all()), is_due)
        .order_by(WebhookDelivery.next_attempt_at, WebhookDelivery.event_id)
        .with_for_update(skip_locked=True, of=WebhookDelivery)
    ).all()
    now = session.execute(select(func.now())).scalar_one()
    taken = []
    for row, endpoint in locked:
        row.attempts += 1
        row.max_attempts = max(row.max_attempts, row.attempts)
        row.next_attempt_at = now + lease
        session.add(WebhookAttempt(delivery_id=row.id, number=row.attempts))
        keys = [endpoint.secret]
        if endpoint.previous_secret and endpoint.previous_until and endpoint.previous_until > now:
            keys.append(endpoint.previous_secret)
        taken.append(Attempt(row.id, endpoint.id, row.attempts, endpoint.url, keys, row.body))
    return taken


def _is_time(lease: timedelta) -> ColumnElement[bool]:
    """Return the condition that a delivery is due; or due later than any after so many attempts can be, because it
    was written before the database's clock was set back."""
    tries = func.greatest(WebhookDelivery.attempts - 1, 0)
    backoff = func.least(
        webhooks.FIRST_RETRY_SECONDS * func.power(webhooks.RETRY_FACTOR, tries), webhooks.LONGEST_RETRY_SECONDS
    )
    longest = func.greatest(webhooks.SPREAD * backoff, lease.total_seconds())
    ahead = func.extract("epoch", WebhookDelivery.next_attempt_at - func.now())
    return or_(WebhookDelivery.next_attempt_at <= func.now(), ahead > longest)


def record(session: Session, attempt: Attempt, result: Result, *, luck: float, disable_after: timedelta) -> str | None:
    """Write an attempt's result and what follows; return the reason where it disabled the endpoint.

    A result that came after another attempt had begun is kept in the log and decides nothing, unless it is a success.
    """
    # The endpoint first: whoever deletes it locks it before its deliveries go.
    endpoint = session.get(
        WebhookEndpoint, attempt.endpoint, with_for_update={"key_share": True}, populate_existing=True
    )
    row = session.get(WebhookDelivery, attempt.delivery, with_for_update=True, populate_existing=True)
    if endpoint is None or row is None:
        return None
    logged = session.get_one(WebhookAttempt, (attempt.delivery, attempt.number))
    logged.outcome, logged.status = result.outcome, result.status
    logged.milliseconds, logged.excerpt = result.milliseconds, result.excerpt
    if row.finished_at is not None:
        return None
    now = session.execute(select(func.now())).scalar_one()
    if result.outcome == "ok":
        row.outcome, row.finished_at, endpoint.failing_since = DELIVERED, now, None
        return None
    if row.attempts != attempt.number:
        return None
    if row.attempts >= row.max_attempts:
        row.outcome, row.finished_at = FAILED, now
    else:
        row.next_attempt_at = now + timedelta(seconds=webhooks.retry_seconds(attempt.number, luck))
    if row.event_id is None:
        return None  # a ping is a question, and its answer no reason to stop
    endpoint.failing_since = endpoint.failing_since or now
    reason = "gone" if result.status == GONE else "failing" if now - endpoint.failing_since > disable_after else None
    if reason and endpoint.enabled:
        disable(endpoint, reason)
        return reason
    return None


def waiting_seconds(session: Session) -> float:
    """Return how long the oldest message has been due, or the oldest event unread; 0 where nothing waits.

    Events count too: where no process delivers, nothing becomes a delivery.
    """
    anybody = select(WebhookEndpoint.id).where(WebhookEndpoint.enabled).exists()
    if not session.execute(select(anybody)).scalar_one():
        return 0.0
    due = (
        select(func.min(WebhookDelivery.next_attempt_at))
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(WebhookDelivery.finished_at.is_(None), WebhookEndpoint.enabled)
    )
    position = select(WebhookPosition.event_id).scalar_subquery()
    unseen = select(Event.created_at).where(Event.id > position).order_by(Event.id).limit(1)
    oldest = func.least(due.scalar_subquery(), unseen.scalar_subquery())  # of the two that there are
    waited = session.execute(select(func.extract("epoch", func.now() - oldest))).scalar_one()
    return max(float(waited), 0.0) if waited is not None else 0.0


def prune_deliveries(session: Session, kept: timedelta) -> None:
    """Forget what was finished long ago; and what waits for an endpoint that has been disabled for as long.

    :data:`PRUNED_AT_ONCE` of them at most.
    """
    old = func.now() - kept
    waiting = and_(WebhookDelivery.finished_at.is_(None), WebhookDelivery.next_attempt_at < old)
    some = select(WebhookDelivery.id).where(or_(WebhookDelivery.finished_at < old, waiting)).limit(PRUNED_AT_ONCE)
    session.execute(
        delete(WebhookDelivery).where(WebhookDelivery.id.in_(some)).execution_options(synchronize_session=False)
    )
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.previous_until < func.now())
        .values(previous_secret=None, previous_until=None)
        .execution_options(synchronize_session=False)
    )


def _position(session: Session) -> WebhookPosition:
    """Return the one row, locked."""
    _ensure_position(session)
    return session.get_one(WebhookPosition, 1, with_for_update=True, populate_existing=True)


def _ensure_position(session: Session) -> None:
    """Set the first position to the newest settled event, where there is none yet."""
    if session.get(WebhookPosition, 1) is None:
        first = insert(WebhookPosition).values(id=1, event_id=last_settled_id(session))
        session.execute(first.on_conflict_do_nothing())


def _body(event: Event) -> str:
    view = EventView(
        id=event.id,
        kind=event.kind,
        job=event.job_id,
        candidate=event.candidate_id,
        step=event.step_id,
        data=event.data,
        created_at=event.created_at,
    )
    message = {"type": event.kind, "timestamp": event.created_at.isoformat(), "data": view.model_dump(mode="json")}
    body = to_json(message)
    if len(body.encode()) <= webhooks.MAX_BODY_BYTES:
        return body
    message["data"] = view.model_copy(update={"data": {"truncated": True}}).model_dump(mode="json")
    return to_json(message)


def _check_enabled(row: WebhookEndpoint) -> None:
    if not row.enabled:
        raise Conflict(f"the webhook is disabled ({row.disabled_reason})", hint="enable it first")


def _wake(session: Session) -> None:
    session.execute(text(f"SELECT pg_notify('{CHANNEL}', '')"))
