"""A program in a sandbox and the processes that it started: finding them, stopping all, letting them go on.

Signals only; who may start processes is the sandbox's business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


class Family:
    """A program, and all that lives beside it below the name space's init, which adopts orphans."""

    def __init__(self, program: int, init: int | None, *, may_grow: bool) -> None:
        """Process ids as the caller sees them; ``may_grow``: whether the program may start processes."""
        self._program = program
        self._init = init or program
        self._may_grow = may_grow
        self._known: list[int] = []
        """Processes that the program had started when it was last continued."""

    def stop(self) -> float:
        """Stop all threads of all processes; the moment (:func:`time.perf_counter`) at which the last was stopped.

        Those that are known are stopped at once: looking for others takes milliseconds in a program of many threads.
        """
        _send(self._program, signal.SIGSTOP)
        stopped = set(self._known)
        for pid in stopped:
            _send(pid, signal.SIGSTOP)
        moment = time.perf_counter()
        while running := set(self._started()) - stopped:  # one may have just started another
            for pid in running:
                _send(pid, signal.SIGSTOP)
            moment = time.perf_counter()
            stopped |= running
        return moment

    def resume(self) -> float:
        """Continue all; return the moment before that, when all of them were known."""
        stopped, self._known = self._known, self._started()
        moment = time.perf_counter()
        for pid in {*stopped, *self._known}:  # one that has ended may have given its number to a stranger
            _send(pid, signal.SIGCONT)
        _send(self._program, signal.SIGCONT)
        return moment

    def _started(self) -> list[int]:
        if not self._may_grow:
            return []
        return [pid for pid in descendants(self._init) if pid != self._program]


def descendants(pid: int) -> list[int]:
    """Return processes that a process started, and those that these started, nearest first."""
    family: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting[0])
        family += children
        waiting = waiting[1:] + children
    return family


def _children(pid: int) -> list[int]:
    """Return processes that any thread of this one started."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (task / "children").read_text().split())
    return children


def _send(pid: int, number: int) -> None:
    """Signal a process, if it still lives, and its number is not another user's by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
