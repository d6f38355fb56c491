"""End process groups that still run some seconds after their supervisor died: the stack's last resort.

The kernel's death signal asks each child to stop; this makes sure of it, also for children of children. The guard is
this file, run by an isolated interpreter with the standard library only. It reads ``+GROUP`` and ``-GROUP`` lines from
its standard input, whose end means that the supervisor is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_SECONDS = 5.0


class Guard:
    """Supervisor's side: keeps the guard process informed of the groups to end."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process = self._start()

    def add(self, group: int) -> None:
        """Watch over a process group."""
        self._groups.add(group)
        self._send(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Stop watching a process group, which is gone."""
        self._groups.discard(group)
        self._send(f"-{group}\n")

    def keep(self) -> None:
        """Start a new guard where the old one was killed."""
        if self._process.poll() is not None:
            self._close_pipe()
            self._process = self._start()
            self._send("".join(f"+{group}\n" for group in self._groups))

    def close(self) -> None:
        """End the guard; with groups left it kills them first."""
        self._close_pipe()
        self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        argv = [sys.executable, "-I", "-S", __file__]
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, cwd="/", start_new_session=True, text=True
        )

    def _send(self, lines: str) -> None:
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.write(lines)
                self._process.stdin.flush()

    def _close_pipe(self) -> None:
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


def main() -> None:
    """Follow the supervisor's list of groups; at its end, wait, then kill what is left."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    deadline = time.monotonic() + GRACE_SECONDS
    while groups and time.monotonic() < deadline:
        groups = {group for group in groups if _exists(group)}
        time.sleep(0.1)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
