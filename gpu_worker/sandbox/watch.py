"""Watches what limits of a single process cannot bound: the memory and the threads of all processes of a sandbox.

A single process evades its limit on private memory too, which does not count what is mapped for reading only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

INTERVAL_SECONDS = 0.1
"""A process fills a gigabyte in about this time, so a limit is overrun by at most some gigabytes."""

_COUNTED = ("RssAnon:", "VmSwap:", "VmPTE:")
"""Private memory, what is swapped out of it, and page tables. Shared memory is bounded by the sandbox, tmpfs by their
sizes, anonymous mappings and memory files by seccomp, but for programs that seccomp lets have them (CUDA's)."""

_TMPFS = ("tmp", "dev/shm")
_FILE_BYTES = 1024
"""Kernel memory of an empty file in a tmpfs, whose size does not count it: about this much."""

_MEMORY_FILES = ("/memfd:", "/dev/zero (deleted)")
"""Targets of links in /proc to memory files and shared anonymous mappings."""


class Excess(StrEnum):
    """A resource whose limit was exceeded."""

    MEMORY = "memory"
    THREADS = "threads"


@dataclass(frozen=True)
class Usage:
    """Memory and threads of some processes together."""

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
        memory_files: bool = False,
    ) -> None:
        """Watch the process ids of ``processes``; ``end`` kills them all. A limit of None is no limit.

        ``memory_files``: whether their memory files and shared mappings count as well.
        """
        super().__init__(daemon=True, name="sandbox-watch")
        self._processes = processes
        self._end = end
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._memory_files = memory_files
        self._stopped = threading.Event()
        self.excess: Excess | None = None
        """Reason why the program was ended, if it was."""

    def run(self) -> None:
        """Look every :data:`INTERVAL_SECONDS`."""
        while not self._stopped.wait(INTERVAL_SECONDS):
            pids = self._processes()
            used = usage(pids, memory_files=self._memory_files)
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
        exact = proportional_bytes(pids)
        if self._memory_files:
            exact += memory_file_bytes(pids, folders=("fd", "map_files"))
        return Excess.MEMORY if exact + private_file_bytes(pids) > self._memory_bytes else None


def usage(pids: Sequence[int], *, memory_files: bool = False) -> Usage:
    """Return memory and threads of processes; those that have ended count nothing.

    With ``memory_files``, a file that is both open and mapped counts twice.
    """
    memory = private_file_bytes(pids) + (memory_file_bytes(pids, folders=("fd",)) if memory_files else 0)
    counted = (*_COUNTED, "RssShmem:") if memory_files else _COUNTED
    threads = 0
    for pid in pids:
        for name, value in _numbers(f"/proc/{pid}/status"):
            if name in counted:
                memory += value * 1024
            elif name == "Threads:":
                threads += value
    return Usage(memory, threads)


def proportional_bytes(pids: Sequence[int]) -> int:
    """Return private memory of processes, where a page that several share is divided among them. Takes milliseconds."""
    total = 0
    for pid in pids:
        kilobytes = dict(_numbers(f"/proc/{pid}/smaps_rollup"))
        page_tables = dict(_numbers(f"/proc/{pid}/status")).get("VmPTE:", 0)
        total += (kilobytes.get("Pss_Anon:", 0) + kilobytes.get("SwapPss:", 0) + page_tables) * 1024
    return total


def private_file_bytes(pids: Sequence[int]) -> int:
    """Return kernel memory of the files in the private tmpfs of a sandbox, whose innermost process is the last one."""
    total = 0
    for name in _TMPFS:
        with contextlib.suppress(OSError, IndexError):
            inside = os.statvfs(f"/proc/{pids[-1]}/root/{name}")
            if inside.f_fsid != os.statvfs(f"/{name}").f_fsid:  # not the machine's own, as before it is replaced
                total += (inside.f_files - inside.f_ffree) * _FILE_BYTES
    return total


def memory_file_bytes(pids: Sequence[int], *, folders: Sequence[str]) -> int:
    """Add up the memory files that processes have open (``fd``) or mapped (``map_files``), each once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder in (Path(f"/proc/{pid}/{name}") for pid in pids for name in folders):
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    if str(entry.readlink()).startswith(_MEMORY_FILES):
                        file = entry.stat()
                        sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def _numbers(path: str) -> list[tuple[str, int]]:
    """Return lines of a file in /proc that are a name and a number."""
    numbers: list[tuple[str, int]] = []
    with contextlib.suppress(OSError):
        for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.split()
            if len(words) > 1 and words[1].isdecimal():
                numbers.append((words[0], int(words[1])))
    return numbers
