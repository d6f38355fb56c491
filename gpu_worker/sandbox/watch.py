"""Watches what limits of a single process cannot bound: the memory and the threads of all processes of a sandbox.

Only programs that may start processes, or whose limits the system does not enforce, need it: a cpu kernel runs without.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

INTERVAL_SECONDS = 0.1
"""A process fills a gigabyte in about this time, so a limit is overrun by at most some gigabytes."""

_COUNTED = ("RssAnon:", "VmSwap:", "VmPTE:")
"""Private memory, what is swapped out of it, and page tables. Shared memory is bounded by the sandbox: tmpfs by their
sizes, anonymous mappings and memory files by seccomp."""


class Excess(StrEnum):
    """What a program had too much of."""

    MEMORY = "memory"
    THREADS = "threads"


@dataclass(frozen=True)
class Usage:
    """Of some processes together."""

    memory_bytes: int
    threads: int


class Watch(threading.Thread):
    """Looks at the processes of a sandbox until :meth:`stop`, and ends it when they exceed a limit."""

    def __init__(
        self,
        processes: Callable[[], Sequence[int]],
        end: Callable[[], None],
        *,
        memory_bytes: int | None,
        threads: int | None,
    ) -> None:
        """``processes`` lists process ids; ``end`` kills them all. None means: not limited."""
        super().__init__(daemon=True, name="sandbox-watch")
        self._processes = processes
        self._end = end
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._stopped = threading.Event()
        self.excess: Excess | None = None
        """Why the program was ended, if it was."""

    def run(self) -> None:
        """Look every :data:`INTERVAL_SECONDS`."""
        while not self._stopped.wait(INTERVAL_SECONDS):
            pids = self._processes()
            used = usage(pids)
            if not used.threads:  # all have ended, and nobody waits for them
                return
            self.excess = self._exceeded(pids, used)
            if self.excess is not None:
                self._end()
                return

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self.join()

    def _exceeded(self, pids: Sequence[int], used: Usage) -> Excess | None:
        if self._threads is not None and used.threads > self._threads:
            return Excess.THREADS
        if self._memory_bytes is None or used.memory_bytes <= self._memory_bytes:
            return None
        # forked processes share pages, which the quick count takes once for each of them
        return Excess.MEMORY if proportional_bytes(pids) > self._memory_bytes else None


def usage(pids: Sequence[int]) -> Usage:
    """Memory and threads of processes; those that have ended count nothing."""
    memory = threads = 0
    for pid in pids:
        for name, value in _numbers(f"/proc/{pid}/status"):
            if name in _COUNTED:
                memory += value * 1024
            elif name == "Threads:":
                threads += value
    return Usage(memory, threads)


def proportional_bytes(pids: Sequence[int]) -> int:
    """Private memory of processes, where a page that several share is divided among them. Takes milliseconds."""
    total = 0
    for pid in pids:
        kilobytes = dict(_numbers(f"/proc/{pid}/smaps_rollup"))
        page_tables = dict(_numbers(f"/proc/{pid}/status")).get("VmPTE:", 0)
        total += (kilobytes.get("Pss_Anon:", 0) + kilobytes.get("SwapPss:", 0) + page_tables) * 1024
    return total


def _numbers(path: str) -> list[tuple[str, int]]:
    """Lines of a file in /proc that are a name and a number."""
    found: list[tuple[str, int]] = []
    with contextlib.suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if len(words) > 1 and words[1].isdecimal():
                found.append((words[0], int(words[1])))
    return found
