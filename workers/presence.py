"""A worker's row: registered at its start, renewed by a thread also while the worker is busy, removed at its end.

The thread also ends a worker that is of no use: one that is out of service, since its device is lost or it lacks memory
or descriptors; one whose card another worker has; one whose consumer is connected but reads nothing, which looks
healthy from outside; and one with a process that hangs, which has lost its step and holds its slot.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot import __version__
from cupilot.domain.errors import CupilotError
from cupilot.domain.hardware import Device
from cupilot.domain.states import WorkerKind
from cupilot.health import Pulse
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cards import CardTaken, take_card
from cupilot.storage.queue.cluster import (
    beat,
    forget_worker,
    held_steps,
    mark_unhealthy,
    register_worker,
    unclaimed_steps,
)
from cupilot.storage.queue.drains import is_drained

logger = logging.getLogger(__name__)


NEGLECT = 5
"""Deliveries of one step, unclaimed, to a worker with a free slot, after which its consumer is taken to hang."""


@dataclass(frozen=True)
class Worker:
    """A worker process, as it is registered."""

    name: str
    kind: WorkerKind
    queues: Sequence[str]
    slots: int
    device: Device | None


class Presence:
    """Registers and renews one worker; runs in its parent process, whose children run the steps."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        worker: Worker,
        *,
        end_process: Callable[[], None],
        close_intake: Callable[[bool], None],
        at_work: Callable[[], Collection[uuid.UUID]] = frozenset,
    ) -> None:
        """``at_work`` returns the steps that the worker's processes have in hand, claimed or not."""
        self._database = database
        self._worker = worker
        self._end_process = end_process
        self._close_intake = close_intake
        self._first_seen: dict[uuid.UUID, int] = {}
        """Deliveries of each unclaimed step at the time when this worker first had a free slot for it."""
        self._at_work = at_work
        self._claimed: set[uuid.UUID] = set()
        """Steps in hand that this worker was seen to have a lease on."""
        self._lost: dict[uuid.UUID, float] = {}
        """Those of them whose lease is gone, and since when."""
        self._grace_seconds = settings.lease_seconds
        self._beat_seconds = settings.heartbeat_seconds
        self._pulse = Pulse(settings.health_file, worker.kind.value)
        self._end = threading.Event()
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def take_card(self) -> None:
        """Wait until the worker has its card, if it needs one; log which worker has it meanwhile."""
        logged = None
        while self._worker.device is not None:
            try:
                with self._database.transaction() as session:
                    take_card(session, self._worker.device, self._worker.name)
                return
            except CupilotError as error:
                if error.message != logged:
                    logger.warning("waiting: %s: %s (%s)", error.code, error.message, error.hint)
                logged = error.message
            self._pulse.beat()
            self._end.wait(self._beat_seconds)

    def start(self) -> None:
        """Show progress from now on, also while the broker is away, which a restart would not bring back."""
        self._thread.start()

    def begin(self) -> None:
        """Register the worker, whose consumer is connected now, and renew it."""
        self._connected.set()

    def end(self) -> None:
        """Stop renewing and remove the row."""
        self._end.set()
        self._connected.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with suppress(CupilotError), self._database.transaction() as session:
            forget_worker(session, self._worker.name)
        self._pulse.end()

    def _run(self) -> None:
        registered = False
        while not self._end.is_set():
            try:
                if self._connected.is_set():
                    registered = self._report(registered)
            except CardTaken as error:
                self._end_worker(error.message)
            except CupilotError as error:
                logger.warning("worker row not renewed: %s", error)
            except Exception:  # without this thread the worker would serve on unseen
                logger.exception("worker row not renewed")
            self._pulse.beat()
            if self._connected.is_set():
                self._end.wait(self._beat_seconds if registered else 0.5)
            else:
                self._connected.wait(self._beat_seconds)

    def _is_stuck(self, unclaimed: Mapping[uuid.UUID, int]) -> bool:
        """Return whether a step was sent often since this worker first had a free slot for it."""
        self._first_seen = {step: self._first_seen.get(step, count) for step, count in unclaimed.items()}
        return any(count - self._first_seen[step] >= NEGLECT for step, count in unclaimed.items())

    def _hanging(self, held: Collection[uuid.UUID]) -> uuid.UUID | None:
        """Return a step that a process still has in hand for longer than a lease after it lost it.

        A process that works notices in a second that it has lost its step, and lets go of it.
        """
        at_work, now = set(self._at_work()), time.monotonic()
        self._claimed = (self._claimed | set(held)) & at_work
        self._lost = {step: self._lost.get(step, now) for step in self._claimed.difference(held)}
        return next((step for step, since in self._lost.items() if now - since > self._grace_seconds), None)

    def _report(self, registered: bool) -> bool:
        name = self._worker.name
        with self._database.transaction() as session:
            row = beat(session, name) if registered else None
            if row is None:
                self._register(session)
            fault = None if row is None or row.healthy else row.note
            drained = is_drained(session, name)
            unclaimed = {} if drained else unclaimed_steps(session, name)
            hanging = self._hanging(held_steps(session, name))
            if hanging is not None and fault is None:
                fault = f"a process of it hangs: it lost step {hanging} and does not let go of it"
                mark_unhealthy(session, name, fault)
        self._close_intake(drained)
        if fault is not None:
            self._end_worker(f"it cannot serve: {fault}")
        elif self._is_stuck(unclaimed):
            self._end_worker("it is connected but claims no steps")
        return True

    def _register(self, session: Session) -> None:
        worker = self._worker
        register_worker(
            session,
            worker.name,
            worker.kind,
            queues=worker.queues,
            slots=worker.slots,
            version=__version__,
            device=worker.device,
        )

    def _end_worker(self, why: str) -> None:
        """End the worker; its supervisor restarts it."""
        logger.critical("this worker ends: %s", why)
        self._end.set()
        self._end_process()
