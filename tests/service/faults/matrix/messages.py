"""The team's webhook in the matrix: who receives, and what must be true of the messages after any faults.

Delivery is at least once: a message may come twice where a process died before it could record the first time, always
under one id, by which the receiver knows it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func

from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.webhooks import WebhookEndpoint
from tests.service.receiver import receiving

WANTED = "job.*"
LEASE_MARGIN_SECONDS = 2.0
"""In place of the deliverer's own minute, so that a message whose process died is due again within a test."""
UNSENT = """
SELECT e.id, e.kind, d.attempts FROM events e LEFT JOIN webhook_deliveries d ON d.event_id = e.id
WHERE e.job_id = ANY(:jobs) AND e.kind LIKE 'job.%' AND d.outcome IS DISTINCT FROM 'delivered'
"""
"""Events of jobs whose message is not recorded as delivered."""


@dataclass(frozen=True)
class Messages:
    """The account of all messages so far."""

    events: int
    """Of which the team was told."""
    received: int
    """Messages, those that came again among them."""

    @property
    def repeated(self) -> int:
        """Messages that came again, under their id."""
        return self.received - self.events


class Inbox:
    """A receiver on this machine, and the webhook of a team that sends to it."""

    def __init__(self, database: Database, team: UUID) -> None:
        self._open = ExitStack()
        self._receiver = self._open.enter_context(receiving())
        with database.transaction() as session:
            # Older than any clock is set back: whose events are older than the webhook are not sent.
            since = func.now() - timedelta(days=1)
            session.add(
                WebhookEndpoint(
                    team_id=team, url=self._receiver.url, events=[WANTED], secret="whsec_c2VjcmV0", created_at=since
                )
            )

    def breaches(self) -> list[str]:
        """Return what was received otherwise than once for all under one id."""
        ids: dict[int, set[str]] = {}
        for headers, body in list(self._receiver.got):
            ids.setdefault(json.loads(body)["data"]["id"], set()).add(headers["webhook-id"])
        several = [f"event {event} came under several ids: {found}" for event, found in ids.items() if len(found) > 1]
        events = Counter(name for found in ids.values() for name in found)
        return several + [f"id {name} stands for several events" for name, count in events.items() if count > 1]

    def missing(self, events: Sequence[int]) -> list[str]:
        """Of these events, those that never came."""
        came = {json.loads(body)["data"]["id"] for _, body in list(self._receiver.got)}
        return [f"event {event} never came" for event in events if event not in came]

    def account(self) -> Messages:
        """Count the messages received so far."""
        return Messages(len(set(self._receiver.ids())), len(self._receiver.got))

    def close(self) -> None:
        """Receive no more."""
        self._open.close()
