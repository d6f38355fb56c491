"""What a worker's parent process tells its children: take nothing new, or let go of what you hold because we end."""

from __future__ import annotations

import mmap


class Draining:
    """Two bytes of memory that forked children share with their parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 2)

    def close(self, closed: bool) -> None:
        """Let the children take nothing new, or take work again; what they hold they finish."""
        self._memory[1] = closed

    @property
    def closed(self) -> bool:
        """Whether to take nothing new."""
        return self._memory[1] == 1 or self()

    def begin(self) -> None:
        """Ask the children to let go."""
        self._memory[0] = 1

    def __call__(self) -> bool:
        """Whether they were asked."""
        return self._memory[0] == 1
