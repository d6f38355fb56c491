"""Flags by which a worker's parent process tells its children to claim nothing new, or to release their steps."""

from __future__ import annotations

import mmap


class Draining:
    """Two bytes of memory that forked children share with their parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2)

    def close(self, closed: bool) -> None:
        """Tell the children to claim nothing new, or to claim again; they finish the steps that they have."""
        self._memory[1] = closed

    @property
    def closed(self) -> bool:
        """True if the children claim nothing new."""
        return self._memory[1] == 1 or self()

    def begin(self) -> None:
        """Ask the children to release their steps, because the worker ends."""
        self._memory[0] = 1

    def __call__(self) -> bool:
        """Return whether :meth:`begin` was called."""
        return self._memory[0] == 1
