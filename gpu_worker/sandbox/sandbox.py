"""Starts programs in sandboxes: bubblewrap where namespaces can be made, else landlock and seccomp.

A sandboxed program sees a read-only system, a private /tmp, its own folders, no home, no network, no environment of
ours and no other process; it dies with the thread that started it. What it does inside is not this module's business.

Where the worker is root, each program runs under a user id of its own (:mod:`gpu_worker.sandbox.private_user`): root in
a user namespace is still root to /proc/sys, to limits on processes and to files that root owns.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpu_worker.sandbox import bubblewrap, cgroup, confine, landlock, private_user, seccomp
from gpu_worker.sandbox.cgroup import ControlGroup
from gpu_worker.sandbox.child import Child, Finished, Lent
from gpu_worker.sandbox.files import python_folders
from gpu_worker.sandbox.limits import Limits
from gpu_worker.targets.base import Access, Program


class Sandbox:
    """Starts programs in the strongest confinement that this machine allows."""

    def __init__(self, kind: str | None = None, *, own_user: bool | None = None) -> None:
        """Find the means of this machine; ``own_user`` overrides whether each program gets its own user id."""
        self.kind = kind or strongest()
        """``bwrap+seccomp`` or ``landlock+seccomp``; recorded with every measurement."""
        self.own_user = separates_users(self.kind) if own_user is None else own_user
        """True if each program runs under a user id of its own; only root can give one."""

    def run(self, program: Program, limits: Limits, timeout: float) -> Finished:
        """Run a program to its end."""
        child = self.start(program, limits)
        try:
            return child.wait(timeout)
        finally:
            child.kill()

    def start(self, program: Program, limits: Limits, descriptors: Sequence[int] = ()) -> Child:
        """Start a program that inherits these descriptors (under the same numbers) and no others."""
        if os.geteuid() == 0 and not self.own_user:
            raise OSError("no sandbox: this process cannot start programs under another user id than root's")
        access = program.access
        uncounted = access.memory_files or not access.bounded_address_space
        program_filter = seccomp.base_filter(
            subprocesses=access.subprocesses,
            memory_files=uncounted,
            file_locks=access.file_locks,
            sets_affinity=limits.cpus is None,
            accountable=access.accountable,
            namespaces=self.kind.startswith("bwrap"),
        )
        writable = tuple(path.resolve() for path in access.writable)
        lent = Lent(private_user.draw() if self.own_user else None, writable, _control_group(limits, uncounted))
        start = bubblewrap.start if self.kind.startswith("bwrap") else landlock.start
        try:
            if lent.user is not None:
                private_user.lend(writable, lent.user)
            child = start(program, limits, descriptors, program_filter, lent)
        except BaseException:
            lent.end()
            raise
        threads = None if self._counts_threads() else limits.processes
        # the judge's memory files are the tensors of all, and it runs no code of users
        memory_files = not access.bounded_address_space and not access.memory_files
        child.watch(memory_bytes=limits.total(), threads=threads, memory_files=memory_files)
        return child

    def _counts_threads(self) -> bool:
        """Return whether the system counts a program's processes apart from all others, and so can limit them."""
        return self.own_user or self.kind.startswith("bwrap")


@cache
def strongest() -> str:
    """Return the strongest kind of sandbox that works here; raises OSError where none does."""
    if not seccomp.supported():
        raise OSError("no sandbox: the machine's architecture is not supported")
    root = os.geteuid() == 0
    if separates_users("bwrap+seccomp") if root else _works(Sandbox("bwrap+seccomp")):
        return "bwrap+seccomp"
    if confine.landlock_abi() > 0 and (not root or separates_users("landlock+seccomp")):
        return "landlock+seccomp"
    if root:
        raise OSError(
            "no sandbox: as root, this process can start programs under another user id neither with bubblewrap nor"
            " with landlock; run the worker as an unprivileged user"
        )
    raise OSError("no sandbox: neither user namespaces (bubblewrap) nor landlock work on this machine")


@cache
def separates_users(kind: str) -> bool:
    """Return whether this process can start programs under user ids of their own in this kind of sandbox."""
    return private_user.available() and _works(Sandbox(kind, own_user=True))


_PROBE = """
import os, sys
open(sys.argv[1]).close()
try:
    open("/proc/sys/kernel/core_pattern", "r+")
except OSError:
    sys.exit(0 if os.getuid() else 2)
sys.exit(3)
"""


def _works(sandbox: Sandbox) -> bool:
    """Return whether a program starts, finds our packages, is not root, and cannot change settings of the system."""
    argv = (sys.executable, "-I", "-S", "-c", _PROBE, str(Path(confine.__file__)))
    with contextlib.suppress(OSError):  # such as limiting a bubblewrap that runs as another user
        return sandbox.run(Program(argv, Access(read_only=python_folders())), Limits(), timeout=10.0).code == 0
    return False


def _control_group(limits: Limits, uncounted: bool) -> ControlGroup | None:
    """Return a group for a program with these limits; none for the memory of one that has shared memory of its own."""
    parent = _delegated()
    if parent is None:
        return None
    with contextlib.suppress(OSError):
        return ControlGroup(parent, memory_bytes=None if uncounted else limits.total(), threads=limits.processes)
    return None


@cache
def _delegated() -> Path | None:
    parent = cgroup.delegated()
    return parent if parent is not None and cgroup.usable(parent) else None
