"""A control group for each sandboxed program, where the system has delegated cgroup v2 to the worker.

Counts all memory of all processes of a program, and their threads. The worker's own group must be writable and hand the
controllers ``memory`` and ``pids`` down (systemd: ``Delegate=memory pids`` and ``DelegateSubgroup=``); cgroup v2 wants
a group with children to hold no process, so programs' groups are made beside the worker's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
_REMOVE_SECONDS = 1.0


class ControlGroup:
    """One program's group; made before the program starts, removed once it has ended."""

    def __init__(self, parent: Path, *, memory_bytes: int | None, threads: int | None) -> None:
        """Make a group; raises OSError if it cannot be made or limited."""
        self.folder = parent / f"cupilot-{secrets.token_hex(8)}"
        self.folder.mkdir()
        try:
            if memory_bytes is not None:
                (self.folder / "memory.max").write_text(str(memory_bytes))
                with contextlib.suppress(FileNotFoundError):  # a system without swap
                    (self.folder / "memory.swap.max").write_text("0")
            if threads is not None:
                (self.folder / "pids.max").write_text(str(threads))
        except OSError:
            self.folder.rmdir()
            raise

    def add(self, pid: int) -> None:
        """Move a process into the group; those that it starts from now on are born there."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> bool:
        """Return whether the system killed a process of the group for exceeding the group's memory."""
        with contextlib.suppress(OSError):
            events = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", "0")) > 0
        return False

    def remove(self) -> None:
        """Kill what is left in the group, and remove it."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + _REMOVE_SECONDS
        while self.folder.exists() and time.monotonic() < deadline:
            try:
                self.folder.rmdir()
            except OSError:  # a killed process takes a moment to leave
                time.sleep(0.005)


def usable(parent: Path) -> bool:
    """Return whether groups can be made there, and processes moved into them."""
    try:
        group = ControlGroup(parent, memory_bytes=2**30, threads=10)
    except OSError:
        return False
    with subprocess.Popen(["/bin/sleep", "10"]) as probe:
        try:
            group.add(probe.pid)
        except OSError:
            return False
        finally:
            probe.kill()
            probe.wait()
            group.remove()
    return True


def delegated(mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the folder in which groups with limits can be made; None where there is none."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            if not line.startswith("0::"):
                continue
            parent = (mount / line.removeprefix("0::").strip("/")).parent
            handed_down = set((parent / "cgroup.subtree_control").read_text().split())
            if {"memory", "pids"} <= handed_down and parent.is_relative_to(mount) and os.access(parent, os.W_OK):
                return parent
    return None
