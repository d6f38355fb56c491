"""Put a webhook's message into the form that a chat program shows: Slack's or Microsoft Teams'. Sends nothing."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

SLACK_HOSTS = ("hooks.slack.com",)
TEAMS_HOSTS = (".webhook.office.com", ".logic.azure.com", ".api.powerplatform.com")
"""Of incoming webhooks and of the workflows that replace them."""
SHOWN = ("problem", "state", "reason", "message", "verdict", "speedup")
"""Fields of an event that a reader of a chat wants, where it has them."""
LONGEST = 2_000


def shaped(url: str, body: str) -> str:
    """Return the body for this address: as it is, unless the host is one of a chat program."""
    host = (urlsplit(url).hostname or "").lower()
    if host in SLACK_HOSTS:
        return json.dumps({"text": _escaped(_words(body))})
    if host.endswith(TEAMS_HOSTS):
        block = {"type": "TextBlock", "text": _words(body), "wrap": True}
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [block]}
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return json.dumps({"type": "message", "attachments": [attachment]})
    return body


def _words(body: str) -> str:
    message: dict[str, Any] = json.loads(body)
    data = message.get("data") or {}
    known = {**data, **(data.get("data") or {})} if isinstance(data, dict) else {}
    parts = [f"{name} {known[name]}" for name in SHOWN if known.get(name) not in (None, "", {})]
    where = f" of job {known['job']}" if known.get("job") else ""
    return f"cuPilot: {message.get('type')}{where}{': ' if parts else ''}{', '.join(parts)}"[:LONGEST]


def _escaped(text: str) -> str:
    """Escape what Slack would read as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
