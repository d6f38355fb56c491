"""The lease of one claimed step: a thread renews it and notices a lost claim or a cancelled job.

It stops nothing itself: the work polls :meth:`Lease.cancelled`, and the database refuses results of a lost claim.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType

from sqlalchemy.orm import Session

from cupilot.domain.errors import CupilotError
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.steps import Claim, renew_lease, still_wanted

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
"""Interval between looks at the job: a cancel reaches the device within two seconds."""


class Lease:
    """Context manager around the work on a claim."""

    def __init__(self, database: Database, settings: Settings, claim: Claim, draining: Callable[[], bool]) -> None:
        self._database = database
        self._claim = claim
        self._draining = draining
        self._length = settings.lease_seconds
        self._beat = settings.heartbeat_seconds
        self._watch = min(WATCH_SECONDS, self._beat)
        self._unwanted = threading.Event()
        self._done = threading.Event()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.key}", daemon=True)

    def cancelled(self) -> bool:
        """Return whether to stop: the claim is lost, the job is being cancelled, or this process has to end."""
        return self._unwanted.is_set() or self._draining()

    @property
    def unwanted(self) -> bool:
        """True if the claim is lost or the job is being cancelled, and not only this process has to end."""
        return self._unwanted.is_set()

    def concluded(self, session: Session, outcome: str) -> None:
        """Do nothing: the step's row says what came of it."""

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._watch) and not self._unwanted.is_set():
            try:
                self._check()
            except CupilotError as error:
                logger.warning("lease not renewed: %s step=%s", error, self._claim.step_id)
            if time.monotonic() - self._renewed > self._length:
                logger.warning("lease lost step=%s attempt=%d", self._claim.step_id, self._claim.attempt)
                self._unwanted.set()

    def _check(self) -> None:
        started = time.monotonic()
        with self._database.transaction() as session:
            if not still_wanted(session, self._claim):
                self._unwanted.set()
            elif started - self._renewed >= self._beat and renew_lease(
                session, self._claim, timedelta(seconds=self._length)
            ):
                self._renewed = started
