"""A flag that a worker's parent process sets and its children read: the worker has to end, let go of what can wait."""

from __future__ import annotations

import mmap


class Draining:
    """One byte of memory that forked children share with their parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def begin(self) -> None:
        """Ask the children to let go."""
        self._memory[0] = 1

    def __call__(self) -> bool:
        """Whether they were asked."""
        return self._memory[0] == 1
