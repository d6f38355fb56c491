"""Webhooks: a team's endpoints for events, and the outcome of each message."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from cupilot.schemas.base import Request, Response

Pattern = Annotated[str, StringConstraints(pattern=r"^[a-z_*]+(\.[a-z_*]+)*$", max_length=64)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=20)]
ENDINGS = ["job.succeeded", "job.failed", "job.cancelled", "job.budget_exhausted"]


class WebhookRequest(Request):
    """A webhook to make."""

    url: Url
    """Address that messages are POSTed to; https, at a public address."""
    events: Patterns = ENDINGS
    """Kinds of events, ``*`` for any part: ``job.*``, ``candidate.evaluated``; by default the ends of jobs."""
    description: Annotated[str, StringConstraints(max_length=200)] = ""


class WebhookChange(Request):
    """Changes to a webhook; fields that are left out stay as they are."""

    url: Url | None = None
    events: Patterns | None = None
    description: Annotated[str, StringConstraints(max_length=200)] | None = None
    enabled: bool | None = None
    """``false`` sends nothing until it is enabled again; what still waits is sent then."""

    @model_validator(mode="after")
    def _something(self) -> WebhookChange:
        if not any(value is not None for value in (self.url, self.events, self.description, self.enabled)):
            raise ValueError("nothing to change")
        return self


class WebhookView(Response):
    """A webhook."""

    id: UUID
    url: str
    events: list[str]
    description: str
    enabled: bool
    disabled_reason: str | None = None
    """``requested``, ``failing`` (for days without a success) or ``gone`` (the receiver answered 410)."""
    failing_since: datetime | None = None
    """The first failure after the last success."""
    pending: int
    """Messages that are due or wait for another attempt."""
    previous_secret_until: datetime | None = None
    """Until then messages are signed with the replaced secret too."""
    created_at: datetime


class WebhookWithSecret(WebhookView):
    """A webhook, with the secret that its messages are signed with. It is not shown again."""

    secret: str


class WebhookPage(Response):
    """A team's webhooks, newest first."""

    items: list[WebhookView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class AttemptView(Response):
    """One try to deliver a message."""

    number: int
    outcome: str | None = None
    """``ok``, ``http_error``, ``redirect``, ``timeout``, ``connection_error``, ``tls_error``, ``unknown_host``,
    ``refused_address``; null while it is under way, or where it was cut off."""
    status: int | None = None
    milliseconds: int | None = None
    latency: str | None = None
    """``fast`` (below a second), ``slow`` (below five), ``very_slow``."""
    excerpt: str | None = None
    """The beginning of the response, or what went wrong."""
    started_at: datetime


class DeliveryView(Response):
    """A message to a webhook."""

    id: UUID
    """Sent as the header ``webhook-id``."""
    kind: str
    event: int | None = None
    """Null for a ping."""
    state: str
    """``pending``, ``delivered`` or ``failed`` (all attempts used up)."""
    attempts: int
    last_outcome: str | None = None
    last_status: int | None = None
    next_attempt_at: datetime | None = None
    """Only while it is pending."""
    created_at: datetime
    finished_at: datetime | None = None


class DeliveryDetail(DeliveryView):
    """A message with its body and every attempt."""

    body: str
    """Exactly what is sent and signed."""
    log: list[AttemptView]


class DeliveryPage(Response):
    """Messages to a webhook, newest first."""

    items: list[DeliveryView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
