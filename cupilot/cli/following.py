"""A job and its events as they come: from the service's stream, or by polling where no stream arrives."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from uuid import UUID

from cupilot.client import ApiError, Client
from cupilot.schemas import EventView, JobView

GATHER_SECONDS = 0.5
"""Events that come this close together are shown together, with one look at the job."""


class _Broken(Exception):
    """The stream cannot be had; polling goes on after ``after``."""

    def __init__(self, after: int) -> None:
        self.after = after


def updates(client: Client, job: UUID, silence: float) -> Iterator[tuple[JobView, Sequence[EventView]]]:
    """The job and its new events: at once, whenever something happens, and after ``silence`` seconds without anything.

    The last update is of the final job.
    """
    try:
        yield from _streamed(client, job, silence)
    except _Broken as broken:
        yield from client.follow(job, after=broken.after, silence=silence)


def _streamed(client: Client, job: UUID, silence: float) -> Iterator[tuple[JobView, Sequence[EventView]]]:
    arrived: queue.Queue[EventView | None] = queue.Queue()
    thread = threading.Thread(target=_pump, args=(client, job, arrived), name="events", daemon=True)
    thread.start()
    after, ended = 0, False
    while not ended:
        events = _gather(arrived, silence)
        ended = bool(events) and events[-1] is None
        told = [event for event in events if event is not None]
        view = client.get(job)
        after = told[-1].id if told else after
        if ended and not view.final:
            if told:
                yield view, told
            raise _Broken(after)
        yield view, told


def _pump(client: Client, job: UUID, arrived: queue.Queue[EventView | None]) -> None:
    """Hand over every event, then None: whether the stream ended or broke, the job itself tells."""
    try:
        for event in client.stream_events(job):
            arrived.put(event)
    except (ApiError, ValueError, RuntimeError):
        pass  # refused, not the service's format, or the client was closed under it
    finally:
        arrived.put(None)


def _gather(arrived: queue.Queue[EventView | None], silence: float) -> list[EventView | None]:
    """What has come: nothing after ``silence`` seconds, else everything of the moment; None is always the last."""
    found: list[EventView | None] = []
    end = time.monotonic() + silence
    while not (found and found[-1] is None):
        try:
            found.append(arrived.get(timeout=max(end - time.monotonic(), 0.0)))
        except queue.Empty:
            break
        if len(found) == 1:
            end = time.monotonic() + GATHER_SECONDS
    return found
