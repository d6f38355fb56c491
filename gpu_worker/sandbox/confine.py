"""Confinement without namespaces, for machines that bar them: limits, landlock and seccomp, then exec.

Standard library only. Weaker than bubblewrap: the process sees that other processes exist and shares the host's name
spaces, but it reads only what it was given, writes only there, has no network sockets and no environment.
Start: ``python -I -S confine.py JSON -- PROGRAM ARGUMENT...``. Structures: linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on x86_64 and aarch64
_PATH_BENEATH = 1
_VERSION_FLAG = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_LATEST = (1 << 16) - 1  # ABI 5 adds ioctl on devices
_TCP_BOTH = 3
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_MAKE_DEVICES = 1 << 6 | 1 << 11
"""Nobody may: root could otherwise make, and then read, a disk of the machine in a folder of its own."""
_SCOPE_ALL = 3  # ABI 6: no signals and no abstract Unix sockets to processes outside

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
_CAP_DAC_READ_SEARCH = 2


def landlock_abi() -> int:
    """Return version of landlock that the running system offers; 0 where there is none."""
    version = _libc().syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return max(int(version), 0)


def apply_limits(limits: dict[str, int], cpus: Sequence[int] | None, process: int = 0) -> None:
    """Set a process's resource limits by their names (``cpu``, ``data``, ``fsize``...), never above the present hard
    limit, and the CPUs that it may run on; by default this one's.
    """
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        _, hard = resource.prlimit(process, number)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # a second later comes SIGKILL, which says nothing; SIGXCPU tells that processor time was used up
        last = bound + (name == "cpu" and (hard == resource.RLIM_INFINITY or hard > bound))
        resource.prlimit(process, number, (bound, last))
    if cpus is not None:
        os.sched_setaffinity(process, cpus)


def stack_limits(most: int) -> tuple[int, int]:
    """Return soft and hard limit of the stack, the hard one at most ``most``; the soft one is that of threads' stacks.

    A process must set them itself: one that another sets while it starts a program is lost (finalize_exec).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    return (bound if soft == resource.RLIM_INFINITY else min(soft, bound)), bound


def become(uid: int, gid: int, groups: Sequence[int], *, search: bool) -> None:
    """Drop root and all capabilities for another user id; ``search`` keeps the one to read closed folders.

    Landlock decides then which files these are: an interpreter in a closed home could not be started otherwise.
    """
    libc = _libc()
    for number in range(_CAPABILITIES):
        if number != _CAP_DAC_READ_SEARCH or not search:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for those that this system does not know
    _checked(libc.prctl(_PR_SET_KEEPCAPS, int(search), 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    kept = 1 << _CAP_DAC_READ_SEARCH if search else 0
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("<6I", kept, kept, kept, 0, 0, 0)
    _checked(libc.syscall(_CAPSET[platform.machine()], header, data), "capset")
    if search:
        _checked(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0), "PR_CAP_AMBIENT_RAISE")


def die_with_parent() -> None:
    """Ask for SIGKILL when the thread that started this process ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def landlock(readable: Sequence[str], writable: Sequence[str], listable: Sequence[str]) -> None:
    """Leave only these paths, and what is beneath them, to this process; no TCP at all; no
    signals to processes outside, where the system's landlock knows of them (ABI 6, Linux 6.12).

    Of ``listable`` folders only the names of files may be read: Python's imports list the folders on their path.
    """
    abi = landlock_abi()
    if abi == 0:
        raise OSError("this system has no landlock")
    handled = _ALL_BY_ABI.get(abi, _ALL_LATEST)
    attributes = struct.pack("<QQQ", handled, _TCP_BOTH, _SCOPE_ALL)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    ruleset = _checked(_libc().syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
    for path in readable:
        _allow(ruleset, path, _READ & handled)
    for path in writable:
        _allow(ruleset, path, handled & ~_MAKE_DEVICES)
    for path in listable:
        _allow(ruleset, path, _READ_DIR)
    _checked(_libc().prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _checked(_libc().syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = access if Path(path).is_dir() else access & _FILE_ONLY
        rule = struct.pack("<Qi", allowed, descriptor)
        _checked(_libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def main() -> None:
    """Confine this process as the JSON argument says, then become the program."""
    specification = json.loads(sys.argv[1])
    argv = sys.argv[3:]
    sys.path.insert(0, specification["source_root"])
    from gpu_worker.sandbox import seccomp

    if "group" in specification:
        Path(specification["group"]).write_text("0", encoding="ascii")
    apply_limits(specification["limits"], specification["cpus"])
    resource.setrlimit(resource.RLIMIT_STACK, stack_limits(specification["stack"]))
    landlock(specification["readable"], specification["writable"], [specification["source_root"]])
    if "user" in specification:
        become(**specification["user"])
    die_with_parent()  # a change of the user id forgets it
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that whoever watches over memory finds all its processes
    seccomp.install(bytes.fromhex(specification["filter"]))
    os.execve(argv[0], argv, specification["environment"])


if __name__ == "__main__":
    main()
