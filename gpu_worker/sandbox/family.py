"""A program in a sandbox and the processes that it started: finding them, stopping all, letting them go on.

A signal stops them, and another one of any origin would continue them; so processor time tells whether they worked
while they were stopped. Who may start processes and send signals is the sandbox's business.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

STOPPING_SECONDS = 0.5
"""Longest wait for threads to stop: those that have to wait for a processor, or are inside of a long system call."""

_LOOK_SECONDS = 5e-5
_PROCESSOR_CLOCK = 2  # CPUCLOCK_SCHED of a process, whose clock has the id that clock_getcpuclockid(3) returns
_STANDS_STILL = frozenset("TtZX")


class Family:
    """A program, and all that lives beside it below the name space's init, which adopts orphans."""

    def __init__(self, program: int, init: int | None, *, may_grow: bool) -> None:
        """Process ids as the caller sees them; ``may_grow``: whether the program may start processes."""
        self._program = program
        self._init = init or program
        self._may_grow = may_grow
        self._known: list[int] = []
        """Processes that the program had started when it was last continued."""
        self._used: dict[int, float] = {}
        """Processor seconds by process, when the last thread had stopped."""
        self.awake_seconds = 0.0
        """Processor time that the family used while it was last stopped; a family that cannot wake itself uses none."""

    def stop(self) -> float:
        """Stop all threads of all processes; the moment (:func:`time.perf_counter`) since which none of them works.

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
        _wait_until_still([self._program, *stopped])
        self._used, moved = _at_rest([self._program, *stopped])
        return moment if moved is None else moved

    def resume(self) -> float:
        """Continue all; return the moment before that, when all of them were known."""
        stopped, self._known = self._known, self._started()
        used = _processor_seconds([self._program, *self._known])
        self.awake_seconds = sum(seconds - self._used.get(pid, 0.0) for pid, seconds in used.items())
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


def _wait_until_still(pids: Sequence[int]) -> None:
    """Wait until no thread of these processes can run on, for :data:`STOPPING_SECONDS` at most."""
    deadline = time.perf_counter() + STOPPING_SECONDS
    while not all(map(_stands_still, pids)) and time.perf_counter() < deadline:
        time.sleep(_LOOK_SECONDS)


def _stands_still(pid: int) -> bool:
    """Return whether every thread of a process is stopped, or has ended."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in _STANDS_STILL:
                    return False
    return True


def _processor_seconds(pids: Sequence[int]) -> dict[int, float]:
    """Return the processor time that processes have used, of all their threads; of those that live."""
    seconds = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds[pid] = time.clock_gettime((~pid << 3) | _PROCESSOR_CLOCK)
    return seconds


def _at_rest(pids: Sequence[int]) -> tuple[dict[int, float], float | None]:
    """Return the processor time of stopped processes once it stands still, and when it was last seen to run on.

    A thread is told as stopped just before it leaves its processor. Where a hypervisor takes that away in between, the
    thread is charged with milliseconds in which it did nothing.
    """
    used, moved = _processor_seconds(pids), None
    deadline = time.perf_counter() + STOPPING_SECONDS
    while time.perf_counter() < deadline:
        time.sleep(_LOOK_SECONDS)
        before, used = used, _processor_seconds(pids)
        if used == before:
            break
        moved = time.perf_counter()
    return used, moved


def _send(pid: int, number: int) -> None:
    """Signal a process, if it still lives, and its number is not another user's by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
