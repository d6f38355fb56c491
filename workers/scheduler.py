"""The scheduler's loop: one process is the leader, others stand by. It runs no steps.

A tick is a series of short transactions, each idempotent and safe beside another scheduler's, so that a tick may be cut
off anywhere.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from cupilot import __version__
from cupilot.domain.errors import CupilotError
from cupilot.health import Pulse
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.leadership import Leadership
from cupilot.storage.jobs.jobs import release_keys
from cupilot.storage.operations.pruning import may_prune
from cupilot.storage.operations.retention import prune_some
from cupilot.storage.people.audit import prune_audit
from cupilot.storage.queue.batches import prune_batches
from cupilot.storage.queue.cluster import prune_workers
from cupilot.storage.queue.dispatch import prune_sent
from cupilot.storage.queue.drains import prune_drains
from workers.batches.keeper import BatchKeeper
from workers.clock import ClockWatch
from workers.dispatcher import dispatch, note_missing, request_index
from workers.reaper import end_cancelled, end_over_quota, end_overtime, reap
from workers.relay import Relay

logger = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses while the database or the broker is away; the last one repeats."""
REAPER_SECONDS = 1.0
NOTES_SECONDS = 3.0
PRUNE_SECONDS = 60.0
RETENTION_SECONDS = 1.0
"""Interval between batches, each a small job or part of a large one: about 80,000 jobs a day without a long tick."""


class Scheduler:
    """The loop; :meth:`tick` is one round of it, which only the leader makes."""

    def __init__(self, settings: Settings, database: Database, relay: Relay) -> None:
        self._settings = settings
        self._database = database
        self._relay = relay
        self._leadership = Leadership(database)
        self._pulse = Pulse(settings.health_file, "scheduler")
        self._relay_failures = 0
        self._clock = ClockWatch(settings.lease_seconds)
        self._batches = BatchKeeper(settings, database)
        self._last: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Tick until ``stop`` is set; after an error, back off and go on."""
        logger.info("scheduler %s waits to be in charge", __version__)
        failures, in_charge = 0, False
        while not stop.is_set():
            try:
                acquired = self._leadership.acquire()
                if acquired is not in_charge:
                    logger.info("in charge" if acquired else "no longer in charge")
                    in_charge = acquired
                if acquired:
                    self.tick()
                    self._leadership.wait(self._settings.scheduler_tick_seconds)
                else:
                    stop.wait(self._settings.scheduler_tick_seconds)
                failures = 0
                self._pulse.beat()
            except CupilotError as error:
                logger.warning("tick not finished: %s", error)
                failures += 1
                self._pulse.beat()
            except Exception:  # the next tick may get further
                logger.exception("tick failed")
                failures += 1
            if failures:
                stop.wait(_backoff(failures))
        self._leadership.release()
        self._pulse.end()

    def tick(self) -> None:
        """Dispatch, relay, reap and prune once, each when it is due; look after batches.

        Dispatch comes first: most ticks answer a notification, and a step waits for it.
        """
        redispatch = timedelta(seconds=self._settings.redispatch_seconds)
        dispatch(self._database, redispatch, self._settings.bundle_seconds)
        self._run_relay()
        self._batches.work()
        if self._due("reaper", REAPER_SECONDS):
            self._clock.look(self._database)
            reap(self._database)
            end_cancelled(self._database, timedelta(seconds=self._settings.lease_seconds))
            end_overtime(self._database)
            end_over_quota(self._database)
        if self._due("notes", NOTES_SECONDS):
            note_missing(self._database)
            request_index(self._database)
        if self._due("prune", PRUNE_SECONDS):
            self._clock.look(self._database)  # a step of the clock holds it back
            self._prune()
        if self._settings.job_keep_days is not None and self._due("retention", RETENTION_SECONDS):
            self._prune_jobs(timedelta(days=self._settings.job_keep_days))

    def _prune(self) -> None:
        with self._database.transaction() as session:
            prune_sent(session)
            prune_workers(session)
            if may_prune(session):
                release_keys(session)
                prune_audit(session, timedelta(days=self._settings.audit_keep_days))
                prune_drains(session)
                prune_batches(session)

    def _prune_jobs(self, kept: timedelta) -> None:
        with self._database.transaction() as session:
            job = prune_some(session, kept) if may_prune(session) else None
        if job is not None:
            logger.info("pruned details job=%s", job)

    def _run_relay(self) -> None:
        """Publish, with backoff while the broker is away; everything else goes on."""
        if self._relay_failures == 0 or self._due("relay", _backoff(self._relay_failures)):
            self._relay_failures = 0 if self._relay.run() else self._relay_failures + 1
            self._last["relay"] = time.monotonic()

    def _due(self, name: str, every: float) -> bool:
        now = time.monotonic()
        if now - self._last.get(name, -every) < every:
            return False
        self._last[name] = now
        return True


def _backoff(failures: int) -> float:
    return BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS)) - 1]
