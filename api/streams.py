"""Event streams: one reader of the database a process, any number of clients, bounded memory for each.

The :class:`Hub`'s thread reads new events once, woken by a notification, and hands each to the subscriptions of its job
and its team. A client that reads too slowly for its buffer is served from the database again; one that takes nothing at
all for half a minute is dropped, and goes on later where it was (``Last-Event-ID``). What goes over the wire is
:mod:`api.event_stream`'s business.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from uuid import UUID

from cupilot.domain.errors import CupilotError
from cupilot.schemas import EventView
from cupilot.storage.db.engine import Database
from cupilot.storage.db.feed import Listener, events_after, last_settled_id, nothing_follows
from cupilot.storage.jobs.job_views import event_view

PAGE = 500
BUFFER = 1_000
"""Events that are kept for a client that is busy; beyond, it is served from the database when it comes back."""
POLL_SECONDS = 1.0
"""Longest wait between looks: notifications shorten it, and a transaction that was rolled back sends none."""
RETRY_SECONDS = 1.0

logger = logging.getLogger(__name__)


class TooManyStreams(CupilotError):
    """This process, or this team, has as many open streams, and requests that wait for events, as it may have."""

    code = "too_many_streams"
    status = 429


class Subscription:
    """Subscription of one client: a job, or all of a team. Filled by the hub's thread, emptied by the client's task."""

    def __init__(self, hub: Hub, team: UUID, job: UUID | None, position: int) -> None:
        self.team = team
        self.job = job
        self._hub = hub
        self._position = position
        """Events up to here are in the database; later ones are offered."""
        self._lock = threading.Lock()
        self._events: deque[EventView] = deque()
        self._behind = True
        """True if the next events have to come from the database."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def offer(self, events: Sequence[EventView], position: int) -> None:
        """Add new events of this subscription, in order; ``position`` is how far the hub has read."""
        with self._lock:
            self._position = position
            if len(self._events) + len(events) > BUFFER:
                self._events.clear()
                self._behind = True
            elif not self._behind:
                self._events.extend(events)
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake.set)

    async def next(self, after: int, seconds: float) -> Sequence[EventView]:
        """Return events with ids above ``after``, as soon as there are some; none after so many seconds."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            with self._lock:
                behind, position = self._behind, self._position
                ready = [event for event in self._events if event.id > after]
                self._events.clear()
                if behind:
                    # Whatever is offered from now on is kept, and what it repeats is left out above.
                    self._behind = False
            if behind:
                try:
                    ready = await asyncio.to_thread(self._read, after, position)
                except CupilotError as error:
                    logger.warning("events not read for a client: %s", error)
                    self.look_again()
                    await asyncio.sleep(RETRY_SECONDS)
                    return ()
            if ready:
                return ready
            try:
                await asyncio.wait_for(self._wake.wait(), seconds)
            except TimeoutError:
                return ()

    async def complete(self, after: int) -> bool:
        """Return whether the job is final and everything about it has been sent; no, while the database is away."""
        try:
            return self.job is not None and await asyncio.to_thread(self._complete, after)
        except CupilotError:
            return False

    def look_again(self) -> None:
        """Read the database next time, whatever is offered."""
        with self._lock:
            self._behind = True

    def close(self) -> None:
        """Stop being offered anything."""
        self._hub.remove(self)

    def _read(self, after: int, position: int) -> list[EventView]:
        with self._hub.database.transaction() as session:
            up_to = max(last_settled_id(session), position)
            rows = events_after(session, after, up_to, PAGE, team=self.team, job=self.job)
        if len(rows) == PAGE:
            self.look_again()
        return [event_view(event) for event, _ in rows]

    def _complete(self, after: int) -> bool:
        assert self.job is not None
        with self._hub.database.transaction() as session:
            return nothing_follows(session, self.job, after)


class Hub:
    """All subscriptions of this process, and the thread that feeds them while there are any."""

    def __init__(self, database: Database, limit: int, team_limit: int) -> None:
        self.database = database
        self._limit = limit
        self._team_limit = team_limit
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription] = set()
        self._thread: threading.Thread | None = None
        self._position = 0

    def subscribe(self, team: UUID, job: UUID | None = None) -> tuple[Subscription, int]:
        """Return a subscription, and the id after which everything is new; raises :class:`TooManyStreams`."""
        with self.database.transaction() as session:
            now = last_settled_id(session)
        with self._lock:
            of_team = sum(other.team == team for other in self._subscriptions)
            if len(self._subscriptions) >= self._limit or of_team >= self._team_limit:
                whose = "your team has" if of_team >= self._team_limit else "this server has"
                raise TooManyStreams(
                    f"{whose} too many open event streams and requests that wait for events",
                    hint="close some, or read the events with after, and without wait",
                )
            if self._thread is None:
                self._position = max(self._position, now)
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()
            subscription = Subscription(self, team, job, self._position)
            self._subscriptions.add(subscription)
        return subscription, now

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription; the thread ends by itself after the last one."""
        with self._lock:
            self._subscriptions.discard(subscription)

    @property
    def size(self) -> int:
        """Open subscriptions."""
        return len(self._subscriptions)

    def _run(self) -> None:
        listener = Listener(self.database)
        pause = threading.Event()
        try:
            while self._has_subscribers():
                try:
                    if not self._read_page():
                        listener.wait(POLL_SECONDS)
                except CupilotError as error:
                    logger.warning("events not read: %s", error)
                    pause.wait(RETRY_SECONDS)
                except Exception:  # the clients wait; the next look may get further
                    logger.exception("events not read")
                    pause.wait(RETRY_SECONDS)
        finally:
            listener.close()

    def _has_subscribers(self) -> bool:
        with self._lock:
            if not self._subscriptions:
                self._thread = None
                return False
            return True

    def _read_page(self) -> bool:
        """Read and hand out what is new; whether there is more."""
        with self.database.transaction() as session:
            up_to = last_settled_id(session)
            if up_to <= self._position:
                return False
            rows = events_after(session, self._position, up_to, PAGE)
        views = [(event_view(event), event.job_id, team) for event, team in rows]
        full = len(rows) == PAGE
        with self._lock:
            self._position = rows[-1][0].id if full else up_to
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            mine = [view for view, job, team in views if team == subscription.team and subscription.job in (None, job)]
            if mine:
                subscription.offer(mine, self._position)
        return full
