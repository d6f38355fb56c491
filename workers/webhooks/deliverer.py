"""Make deliveries of events and send what is due, several at a time, a few of each endpoint.

Holds nothing that matters: whatever process dies whenever, what was not recorded as delivered is due again.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

from cupilot.domain.chat import shaped
from cupilot.domain.errors import CupilotError
from cupilot.domain.webhooks import networks, signed_headers
from cupilot.health import Pulse
from cupilot.logs import log_context
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.feed import Listener
from cupilot.storage.operations.pruning import may_prune
from cupilot.storage.webhooks.deliveries import Attempt, claim, fan_out, prune_deliveries, record
from workers.webhooks.sender import post

logger = logging.getLogger(__name__)

THREADS = 16
PER_ENDPOINT = 4
"""Messages under way to one endpoint: a slow receiver leaves the other threads to the others."""
POLL_SECONDS = 1.0
BUSY_SECONDS = 0.05
"""Pause while all threads are sending."""
RETRY_SECONDS = 2.0
PRUNE_SECONDS = 60.0
LEASE_MARGIN_SECONDS = 60.0
"""Above what a lookup of a name may take beyond the deadline of a message."""


class Deliverer:
    """The loop. :meth:`round` is one turn of it."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._allowed = networks(settings.webhook_networks)
        self._lease = timedelta(seconds=settings.webhook_seconds + LEASE_MARGIN_SECONDS)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="webhook")
        self._lock = threading.Lock()
        self._under_way: Counter[uuid.UUID] = Counter()
        self._pulse = Pulse(settings.health_file, "webhooks")
        self._pruned = float("-inf")

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop; what is being sent then is given its time."""
        listener = Listener(self._database)
        while not stop.is_set():
            try:
                busy = self.round()
                self._pulse.beat()
                if busy:
                    stop.wait(BUSY_SECONDS)
                else:
                    listener.wait(POLL_SECONDS)
            except CupilotError as error:
                logger.warning("webhook round failed, retrying in %.0f s: %s", RETRY_SECONDS, error)
                self._pulse.beat()
                stop.wait(RETRY_SECONDS)
            except Exception:  # whatever it is, the next round may get further
                logger.exception("webhook round failed")
                stop.wait(RETRY_SECONDS)
        listener.close()
        self.finish()
        self._pulse.end()

    def round(self) -> bool:
        """Make deliveries of new events, begin to send what is due; whether there is more to do at once."""
        with self._database.transaction() as session:
            more = fan_out(session)
        with self._lock:
            free = THREADS - self._under_way.total()
            full = [endpoint for endpoint, count in self._under_way.items() if count >= PER_ENDPOINT]
        attempts = []
        if free > 0:
            with self._database.transaction() as session:
                attempts = list(claim(session, free, PER_ENDPOINT, full, self._lease))
        for attempt in attempts:
            self._begin(attempt)
        if time.monotonic() - self._pruned > PRUNE_SECONDS:
            self._pruned = time.monotonic()
            with self._database.transaction() as session:
                if may_prune(session):
                    prune_deliveries(session, timedelta(days=self._settings.webhook_keep_days))
        return more or bool(attempts) or free <= 0

    def finish(self) -> None:
        """Wait for what is being sent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, attempt: Attempt) -> None:
        with self._lock:
            self._under_way[attempt.endpoint] += 1

        def ended(_: Future[None]) -> None:
            with self._lock:
                self._under_way[attempt.endpoint] -= 1
                if not self._under_way[attempt.endpoint]:
                    del self._under_way[attempt.endpoint]

        self._pool.submit(self._send, attempt).add_done_callback(ended)

    def _send(self, attempt: Attempt) -> None:
        body = shaped(attempt.url, attempt.body).encode()
        headers = signed_headers(attempt.secrets, str(attempt.delivery), int(time.time()), body)
        with log_context(webhook=attempt.endpoint, delivery=attempt.delivery, attempt=attempt.number):
            try:
                result = post(attempt.url, body, headers, seconds=self._settings.webhook_seconds, allowed=self._allowed)
                after = timedelta(hours=self._settings.webhook_disable_hours)
                with self._database.transaction() as session:
                    why = record(session, attempt, result, luck=random.random(), disable_after=after)
                logger.info("delivery %s status=%s in %d ms", result.outcome, result.status, result.milliseconds)
                if why is not None:
                    logger.warning("webhook disabled: %s", why)
            except CupilotError as error:
                # Not recorded: it is due again when its lease ends, and the receiver knows it by its id.
                logger.warning("delivery result not recorded: %s", error)
            except Exception:
                logger.exception("delivery attempt failed")
