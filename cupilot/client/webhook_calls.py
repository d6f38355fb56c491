"""Calls of the client about webhooks: create, change, test, read their log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Stream, all_items, path

if TYPE_CHECKING:
    from cupilot.schemas import (
        DeliveryDetail,
        DeliveryPage,
        DeliveryView,
        WebhookChange,
        WebhookPage,
        WebhookView,
        WebhookWithSecret,
    )

Id = uuid.UUID | str


class WebhookCalls:
    """``/v1/webhooks``."""

    @call
    def create_webhook(
        self, url: str, *, events: Sequence[str] | None = None, description: str = ""
    ) -> Call[WebhookWithSecret]:
        """Create a webhook that sends events to a URL; the answer holds the secret, which is not shown again."""
        fields = {"url": url, "description": description} | ({} if events is None else {"events": list(events)})
        return Call(
            schemas.WebhookWithSecret, "POST", "/v1/webhooks", body=schemas.WebhookRequest.model_validate(fields)
        )

    @call
    def webhooks(self, *, cursor: str | None = None, limit: int = 50) -> Call[WebhookPage]:
        """Return a page of the team's webhooks, newest first."""
        return Call(schemas.WebhookPage, "GET", "/v1/webhooks", params={"cursor": cursor, "limit": limit})

    @stream
    def all_webhooks(self) -> Stream[WebhookView]:
        """Return all of the team's webhooks, fetched a page at a time."""
        return all_items(
            lambda cursor: WebhookCalls.webhooks.ask(self, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def webhook(self, webhook: Id) -> Call[WebhookView]:
        """Return one webhook."""
        return Call(schemas.WebhookView, "GET", path("v1", "webhooks", webhook))

    @call
    def change_webhook(self, webhook: Id, change: WebhookChange) -> Call[WebhookView]:
        """Change its URL, filter or description; disable or enable it."""
        return Call(schemas.WebhookView, "PATCH", path("v1", "webhooks", webhook), body=change, repeatable=True)

    @call
    def delete_webhook(self, webhook: Id) -> Call[None]:
        """Remove it with its log."""
        return Call(type(None), "DELETE", path("v1", "webhooks", webhook))

    @call
    def rotate_webhook_secret(self, webhook: Id) -> Call[WebhookWithSecret]:
        """Sign with a new secret; for 24 hours also with the one before."""
        return Call(schemas.WebhookWithSecret, "POST", path("v1", "webhooks", webhook, "secret"))

    @call
    def ping_webhook(self, webhook: Id) -> Call[DeliveryDetail]:
        """Send a test message."""
        return Call(schemas.DeliveryDetail, "POST", path("v1", "webhooks", webhook, "ping"))

    @call
    def deliveries(
        self, webhook: Id, *, state: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> Call[DeliveryPage]:
        """Return a page of the messages to a webhook, newest first.

        ``state`` is ``pending``, ``delivered`` or ``failed``.
        """
        parameters = {"state": state, "cursor": cursor, "limit": limit}
        return Call(schemas.DeliveryPage, "GET", path("v1", "webhooks", webhook, "deliveries"), params=parameters)

    @stream
    def all_deliveries(self, webhook: Id, *, state: str | None = None) -> Stream[DeliveryView]:
        """Return all of them, fetched a page at a time."""
        return all_items(
            lambda cursor: WebhookCalls.deliveries.ask(self, webhook, state=state, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def delivery(self, webhook: Id, delivery: Id) -> Call[DeliveryDetail]:
        """Return a message with every attempt."""
        return Call(schemas.DeliveryDetail, "GET", path("v1", "webhooks", webhook, "deliveries", delivery))

    @call
    def redeliver(self, webhook: Id, delivery: Id) -> Call[DeliveryDetail]:
        """Send a message again, with its old id."""
        return Call(
            schemas.DeliveryDetail, "POST", path("v1", "webhooks", webhook, "deliveries", delivery, "redeliver")
        )
