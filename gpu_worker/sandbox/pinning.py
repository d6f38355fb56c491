"""Pins each thread that works to a core of its own, from outside: a sandboxed program may not choose its cores.

A scheduler often leaves the threads of an OpenMP team on one core for milliseconds after they woke, which a block of
launches then takes longer, most of all where the threads wait for each other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

WORKS = 0.05
"""A thread works if it used more than this share of the time of the one that worked most."""


class Pinning:
    """The threads of one process on the cores that it may use."""

    def __init__(self, pid: int, cpus: Sequence[int]) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._cpus = cpus
        self._used: dict[int, int] = {}
        """Nanoseconds on a core by thread, when it was last looked at."""
        self._pinned: dict[int, int] = {}
        """Cores by thread."""

    def update(self) -> None:
        """Pin each thread that works to a core of its own, where there are several of them and no more than cores.

        All others may use all cores: a thread inherits those of the one that started it.
        """
        if len(self._cpus) == 1:
            return
        used = self._nanoseconds()
        pinned = {thread: cpu for thread, cpu in self._pinned.items() if thread in used}
        working = self._working(used)
        if not pinned.keys() >= set(working):
            pinned = dict(zip(working, self._cpus, strict=False)) if 1 < len(working) <= len(self._cpus) else {}
        for thread in used:
            cpu = pinned.get(thread)
            if thread not in self._used or cpu != self._pinned.get(thread):
                _set_affinity(thread, self._cpus if cpu is None else [cpu])
        self._used, self._pinned = used, pinned

    def _working(self, used: Mapping[int, int]) -> list[int]:
        """Return the threads that worked since the last look."""
        worked = {thread: time - self._used.get(thread, 0) for thread, time in used.items()}
        least = WORKS * max(worked.values(), default=0)
        return [thread for thread, time in worked.items() if time > least]

    def _nanoseconds(self) -> dict[int, int]:
        """Return the time on a core of each thread that lives (proc(5), ``schedstat``)."""
        used = {}
        with contextlib.suppress(OSError):
            for task in self._tasks.iterdir():
                with contextlib.suppress(OSError):
                    used[int(task.name)] = int((task / "schedstat").read_text().split()[0])
        return used


def _set_affinity(thread: int, cpus: Sequence[int]) -> None:
    """Let a thread run on these cores alone; nothing where it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, cpus)
