"""The leases of a worker's claimed steps: a thread renews them and notices lost claims and cancelled jobs.

It stops nothing itself: the work polls :meth:`HeldStep.cancelled`, and the database refuses results of a lost claim.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from sqlalchemy.orm import Session

from cupilot.domain.errors import CupilotError
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.bundles import renew_together, wanted_of
from cupilot.storage.queue.steps import Claim

logger = logging.getLogger(__name__)

WATCH_SECONDS = 1.0
"""Interval between looks at the job: a cancel reaches the device within two seconds."""


class Lease:
    """Context manager around the work on claims that were made together: one step, or a bundle of short ones."""

    def __init__(
        self, database: Database, settings: Settings, claims: Sequence[Claim], draining: Callable[[], bool]
    ) -> None:
        self.draining = draining
        self._database = database
        self._open = {claim.step_id: claim for claim in claims}
        self._unwanted: set[uuid.UUID] = set()
        self._length = settings.lease_seconds
        self._beat = settings.heartbeat_seconds
        self._watch = min(WATCH_SECONDS, self._beat)
        self._done = threading.Event()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claims[0].key}", daemon=True)

    def of(self, claim: Claim) -> HeldStep:
        """Return the hold on one of the steps."""
        return HeldStep(self, claim.step_id)

    def is_unwanted(self, step_id: uuid.UUID) -> bool:
        """Return whether the claim is lost or the job is being cancelled."""
        return step_id in self._unwanted

    def end(self, step_id: uuid.UUID) -> None:
        """Watch a step no more, because what came of it is stored."""
        self._open.pop(step_id, None)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._watch) and (claims := self._watched()):
            try:
                self._check(claims)
            except CupilotError as error:
                logger.warning("lease not renewed: %s step=%s", error, claims[0].step_id)
            except Exception:  # without this thread the step would go on beside its next attempt
                logger.exception("lease not renewed step=%s", claims[0].step_id)
            if time.monotonic() - self._renewed > self._length:
                for claim in claims:
                    logger.warning("lease lost step=%s attempt=%d", claim.step_id, claim.attempt)
                    self._unwanted.add(claim.step_id)

    def _watched(self) -> Sequence[Claim]:
        return [claim for step_id, claim in self._open.copy().items() if step_id not in self._unwanted]

    def _check(self, claims: Sequence[Claim]) -> None:
        started = time.monotonic()
        with self._database.transaction() as session:
            wanted = wanted_of(session, claims)
            held = [claim for claim in claims if claim.step_id in wanted]
            if held and started - self._renewed >= self._beat:
                renew_together(session, held, timedelta(seconds=self._length))
                self._renewed = started
        # One whose result was stored during the look is not lost.
        self._unwanted |= {claim.step_id for claim in claims if claim.step_id not in wanted} & self._open.keys()


@dataclass(frozen=True)
class HeldStep:
    """See :class:`workers.steps.Hold`."""

    lease: Lease
    step_id: uuid.UUID

    def cancelled(self) -> bool:
        """Return whether to stop: the claim is lost, the job is being cancelled, or this process has to end."""
        return self.unwanted or self.lease.draining()

    @property
    def unwanted(self) -> bool:
        """True if the claim is lost or the job is being cancelled, and not only this process has to end."""
        return self.lease.is_unwanted(self.step_id)

    def concluded(self, session: Session, outcome: str) -> None:
        """Do nothing: the step's row says what came of it."""
