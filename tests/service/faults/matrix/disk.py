"""A disk of a few megabytes for one process: a tmpfs in a mount namespace of its own.

Who is not root needs a user namespace for that, too. Root stays out of one: with a single user id in it, the worker
could give no program of a kernel another.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000


def small_disk(folder: Path, size: int) -> Callable[[], None]:
    """Give this new process a disk of ``size`` bytes at ``folder``, for it alone; to be called before anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()

    def mount() -> None:
        if libc.unshare(CLONE_NEWNS if user == 0 else CLONE_NEWUSER | CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        if user == 0:  # what is mounted here is seen nowhere else
            if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
                raise OSError(ctypes.get_errno(), "mount")
        else:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
            raise OSError(ctypes.get_errno(), "mount")

    return mount


def fill(pid: int, folder: Path) -> None:
    """Write to the disk of a process until nothing more fits."""
    inside = Path(f"/proc/{pid}/root{folder}")
    with suppress(OSError), (inside / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(2**20)):
            pass
