"""Sandboxes without namespaces: landlock, seccomp and limits, set by :mod:`gpu_worker.sandbox.confine`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_worker.sandbox import confine, private_user
from gpu_worker.sandbox.child import Child, Lent, spawn
from gpu_worker.sandbox.files import SOURCE_ROOT, SYSTEM_FILES, SYSTEM_FOLDERS, environment
from gpu_worker.sandbox.limits import STACK_BYTES, Limits
from gpu_worker.targets.base import Program

_PROC_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu")


def start(program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes, lent: Lent) -> Child:
    """Start a program with its limits, its seccomp filter, and what it was lent."""
    lent.scratch = scratch = Path(tempfile.mkdtemp(prefix="cupilot-"))
    access = program.access
    system = ("/usr", *SYSTEM_FOLDERS, *SYSTEM_FILES, *_PROC_FILES)
    devices = ("/dev/null", "/dev/urandom", *map(str, access.devices))
    argv = [shutil.which(program.argv[0]) or program.argv[0], *program.argv[1:]]
    specification: dict[str, Any] = {
        "source_root": str(SOURCE_ROOT),
        "limits": limits.by_name(),
        "cpus": limits.cpus,
        "stack": STACK_BYTES,
        "readable": [*system, *map(str, access.read_only)],
        "writable": [str(scratch), *devices, *map(str, access.writable)],
        "filter": program_filter.hex(),
        "environment": {**environment(access), "HOME": str(scratch), "TMPDIR": str(scratch)},
    }
    if lent.group is not None:
        specification["group"] = str(lent.group.folder / "cgroup.procs")
    if lent.user is not None:
        private_user.lend([scratch], lent.user)
        needed = (Path(argv[0]), SOURCE_ROOT, *access.read_only, *access.writable)
        specification["user"] = {
            "uid": lent.user,
            "gid": private_user.group(),
            "groups": private_user.device_groups(access.devices),
            "search": any(private_user.unreachable(path) for path in needed),
        }
        if limits.processes is not None:
            specification["limits"]["nproc"] = limits.processes
    launcher = [sys.executable, "-I", "-S", str(Path(confine.__file__)), json.dumps(specification), "--", *argv]
    return Child(spawn(launcher, descriptors), lent=lent, may_start_processes=access.subprocesses)
