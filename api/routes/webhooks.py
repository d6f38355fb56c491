"""``/v1/webhooks``: endpoints of a team, their secrets, their log."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import APIRouter, Body, Query, Request, Response

from api.dependencies import Admin, Cursor, Limit, StrictRoute, TeamId, Transaction, Viewer
from api.documentation import errors
from cupilot.domain.people import Caller, Role
from cupilot.domain.webhooks import Network, check_url, networks
from cupilot.schemas import (
    DeliveryDetail,
    DeliveryPage,
    WebhookChange,
    WebhookPage,
    WebhookRequest,
    WebhookView,
    WebhookWithSecret,
)
from cupilot.storage.webhooks import deliveries as storage
from cupilot.storage.webhooks import views

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)

EXAMPLES = {
    "ends": {"summary": "The end of every job", "value": {"url": "https://ci.example.org/hooks/cupilot"}},
    "kernels": {
        "summary": "New best kernels too",
        "value": {"url": "https://ci.example.org/hooks/cupilot", "events": ["job.*"], "description": "chat"},
    },
}


@router.post("", status_code=201, summary="Make a webhook", responses=errors(401, 403, 409, 413, 422))
def create_webhook(
    http: Request,
    session: Transaction,
    caller: Admin,
    request: Annotated[WebhookRequest, Body(openapi_examples=EXAMPLES)],
    response: Response,
) -> WebhookWithSecret:
    """Make a webhook: events from now on are sent to the URL.

    They are signed with the secret in this answer, which is not shown again.
    """
    url = check_url(request.url, _allowed(http))
    row = storage.create_endpoint(session, caller.team_id, url, request.events, request.description)
    response.headers["Location"] = f"/v1/webhooks/{row.id}"
    return views.endpoint_with_secret(session, row)


@router.get("", summary="List webhooks", responses=errors(401, 422))
def list_webhooks(session: Transaction, caller: Viewer, cursor: Cursor = None, limit: Limit = 50) -> WebhookPage:
    """List your team's webhooks, newest first, without their secrets; below admin, `url` is scheme and host."""
    found = views.list_endpoints(session, caller.team_id, cursor=cursor, limit=limit)
    return found.model_copy(update={"items": [_shown_to(caller, webhook) for webhook in found.items]})


@router.get("/{webhook}", summary="A webhook", responses=errors(401, 404))
def get_webhook(session: Transaction, caller: Viewer, webhook: UUID) -> WebhookView:
    """Get a webhook: if it is enabled, if it fails, and how many messages wait for it.

    Keys below admin are shown only scheme and host of `url`.
    """
    return _shown_to(caller, views.endpoint_view(session, storage.get_endpoint(session, caller.team_id, webhook)))


@router.patch("/{webhook}", summary="Change, disable or enable a webhook", responses=errors(401, 403, 404, 413, 422))
def change_webhook(
    http: Request, session: Transaction, caller: Admin, webhook: UUID, change: WebhookChange
) -> WebhookView:
    """Change a webhook. Enabling it sends what still waits. Repeating a change is harmless."""
    row = storage.change_endpoint(
        session,
        caller.team_id,
        webhook,
        url=change.url,
        allowed=_allowed(http),
        events=change.events,
        description=change.description,
        enabled=change.enabled,
    )
    return views.endpoint_view(session, row)


@router.delete("/{webhook}", status_code=204, summary="Delete a webhook", responses=errors(401, 403, 404))
def delete_webhook(session: Transaction, caller: Admin, webhook: UUID) -> None:
    """Delete a webhook and its log."""
    storage.delete_endpoint(session, caller.team_id, webhook)


@router.post("/{webhook}/secret", summary="Replace a webhook's secret", responses=errors(401, 403, 404))
def rotate_webhook_secret(session: Transaction, caller: Admin, webhook: UUID) -> WebhookWithSecret:
    """Replace the secret. For 24 hours messages are signed with the new secret and with the previous one."""
    return views.endpoint_with_secret(session, storage.rotate_secret(session, caller.team_id, webhook))


@router.post("/{webhook}/ping", status_code=202, summary="Test a webhook", responses=errors(401, 403, 404, 409))
def ping_webhook(session: Transaction, caller: Admin, webhook: UUID) -> DeliveryDetail:
    """Send a message of the type `webhook.ping`, once; the delivery's log shows the result."""
    row = storage.get_endpoint(session, caller.team_id, webhook)
    return views.delivery_view(session, storage.ping(session, row))


@router.get("/{webhook}/deliveries", summary="A webhook's log", responses=errors(401, 404, 422))
def list_deliveries(
    *,
    session: Transaction,
    team: TeamId,
    webhook: UUID,
    state: Annotated[Literal["pending", "delivered", "failed"] | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> DeliveryPage:
    """List messages, newest first."""
    row = storage.get_endpoint(session, team, webhook)
    return views.list_deliveries(session, row, state=state, cursor=cursor, limit=limit)


@router.get("/{webhook}/deliveries/{delivery}", summary="A message and its attempts", responses=errors(401, 404))
def get_delivery(session: Transaction, team: TeamId, webhook: UUID, delivery: UUID) -> DeliveryDetail:
    """Get a message: its body as sent, and of every attempt status, time and the beginning of the answer."""
    row = storage.get_endpoint(session, team, webhook)
    return views.delivery_view(session, storage.get_delivery(session, row, delivery))


@router.post(
    "/{webhook}/deliveries/{delivery}/redeliver",
    status_code=202,
    summary="Send a message again",
    responses=errors(401, 403, 404, 409),
)
def redeliver(session: Transaction, caller: Admin, webhook: UUID, delivery: UUID) -> DeliveryDetail:
    """Send a message again with the same `webhook-id` and all attempts; a 409 while it is still being tried."""
    row = storage.get_endpoint(session, caller.team_id, webhook)
    return views.delivery_view(session, storage.redeliver(session, row, delivery))


def _allowed(http: Request) -> tuple[Network, ...]:
    return networks(http.app.state.settings.webhook_networks)


def _shown_to(caller: Caller, webhook: WebhookView) -> WebhookView:
    """Return the webhook; below admin without its path, since whoever knows a chat's address can write there."""
    if caller.acts_as is Role.ADMIN:
        return webhook
    parts = urlsplit(webhook.url)
    return webhook.model_copy(update={"url": f"{parts.scheme}://{parts.netloc}"})
