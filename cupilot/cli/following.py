"""Follow a job and its events: by the service's stream, or by polling where no stream arrives."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from uuid import UUID

from cupilot.client import ApiError, Client
from cupilot.schemas import EventView, JobView

GATHER_SECONDS = 0.5
"""Events that come this close together are shown together, with one look at the job."""


class _End(Enum):
    """End of a stream and its cause, queued behind its last event."""

    WHOLE = auto()
    BROKEN = auto()
    """Events may be missing, also where the job is final by now."""


class _Broken(Exception):
    """The stream is not available; polling goes on behind event ``after``."""

    def __init__(self, after: int) -> None:
        self.after = after


def updates(client: Client, job: UUID, silence: float) -> Iterator[tuple[JobView, Sequence[EventView]]]:
    """Yield the job and its new events: at once, whenever something happens, and after ``silence`` seconds without.

    The last update is of the final job.
    """
    try:
        yield from _streamed(client, job, silence)
    except _Broken as broken:
        yield from client.follow(job, after=broken.after, silence=silence)


def _streamed(client: Client, job: UUID, silence: float) -> Iterator[tuple[JobView, Sequence[EventView]]]:
    arrived: queue.Queue[EventView | _End] = queue.Queue()
    thread = threading.Thread(target=_pump, args=(client, job, arrived), name="events", daemon=True)
    thread.start()
    after, ended = 0, False
    while not ended:
        events, end = _gather(arrived, silence)
        view = client.get(job)
        after = events[-1].id if events else after
        if end is _End.BROKEN or (end is _End.WHOLE and not view.final):
            if events:
                yield view, events
            raise _Broken(after)
        yield view, events
        ended = end is _End.WHOLE


def _pump(client: Client, job: UUID, arrived: queue.Queue[EventView | _End]) -> None:
    """Queue every event of the stream, then its end."""
    end = _End.BROKEN
    try:
        for event in client.stream_events(job):
            arrived.put(event)
        end = _End.WHOLE
    except (ApiError, ValueError, RuntimeError):
        pass  # refused, not the service's format, or the client was closed under it
    finally:
        arrived.put(end)


def _gather(arrived: queue.Queue[EventView | _End], silence: float) -> tuple[list[EventView], _End | None]:
    """Return what has come, nothing after ``silence`` seconds; and the end of the stream, if it came."""
    events: list[EventView] = []
    end = time.monotonic() + silence
    while True:
        try:
            item = arrived.get(timeout=max(end - time.monotonic(), 0.0))
        except queue.Empty:
            return events, None
        if isinstance(item, _End):
            return events, item
        if not events:
            end = time.monotonic() + GATHER_SECONDS
        events.append(item)
