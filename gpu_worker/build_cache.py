"""The folder of builds by key, below a size: what was not used for longest goes first.

Several processes may use it at once: each key has a lock, and what was used lately is never removed, since whoever was
given its path may still load it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from gpu_worker.sandbox.leftovers import remove_tree

MOST_BYTES = 2**30
"""Ten to thirty thousand builds of 30 to 100 KB: half a day of a card, whose evaluations make up to 13 each."""
PRUNED_TO = 0.8
"""Share of :data:`MOST_BYTES` that pruning leaves, so that it is seldom done."""
LOOK_EVERY = 1_000
"""Builds that a process makes between two looks at the folder's size, which take a second; the first one is followed
by a look too."""
IN_USE_SECONDS = 3_600.0
"""Above the longest step of a GPU worker."""
BLOCK = 512
"""Unit of ``st_blocks``, stat(2)."""
SCRATCH = ("build-", "built-")
"""Prefixes of the folders in which builds are made; one that is left was made by a process that was killed."""


class _Entry(NamedTuple):
    used: float
    size: int
    place: Path


class BuildCache:
    """Builds under one folder of at most ``most_bytes``, or little more."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        look_every: int = LOOK_EVERY,
        in_use_seconds: float = IN_USE_SECONDS,
    ) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._look_every = look_every
        self._in_use_seconds = in_use_seconds
        self._made = 0
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self, key: str) -> Iterator[Path]:
        """Hold a key's lock and yield its place, which counts as used from now on."""
        place = self.folder / key[:2] / key
        place.parent.mkdir(parents=True, exist_ok=True)
        with _held(place.with_suffix(".lock")):
            with suppress(OSError):  # not there yet
                os.utime(place)
            yield place

    def made(self) -> None:
        """Count a build that was made; look at the folder's size when it is time. The caller holds no lock."""
        if self._made % self._look_every == 0:
            self._prune()
        self._made += 1

    def _prune(self) -> None:
        """Remove what was not used for longest, if the folder is too large; others may do so meanwhile."""
        before = time.time() - self._in_use_seconds
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if path.name.startswith(SCRATCH) and path.stat().st_mtime < before:
                    remove_tree(path)
        entries = sorted(filter(None, map(_entry, self.folder.glob("??/*.lock"))))
        total = sum(entry.size for entry in entries)
        if total <= self._most_bytes:
            return
        for entry in entries:
            if total <= PRUNED_TO * self._most_bytes or entry.used >= before:
                return
            total -= entry.size if _removed(entry.place, before) else 0


def _held(lock: Path) -> IO[str]:
    """Return the lock's file, locked until it is closed."""
    while True:
        file = lock.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        file.close()  # pruned, and perhaps made anew, before it was locked


def _entry(lock: Path) -> _Entry | None:
    """Return a place with its size on disk; None where another process has just removed it."""
    place = lock.with_suffix("")
    with suppress(FileNotFoundError):
        paths = [place, *place.iterdir()] if place.exists() else [lock]
        return _Entry(paths[0].stat().st_mtime, sum(path.stat().st_blocks for path in paths) * BLOCK, place)
    return None


def _removed(place: Path, before: float) -> bool:
    """Remove a place and its lock, unless it is in use; return whether it was removed."""
    lock = place.with_suffix(".lock")
    try:
        with lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if place.exists() and place.stat().st_mtime >= before:
                return False
            remove_tree(place)
            lock.unlink()
    except OSError:  # another process holds it, or has removed it
        return False
    return True
