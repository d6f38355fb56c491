"""A user id of its own for each sandboxed program, where the worker is root, and folders lent to it.

The kernel decides by user id: who may write system settings, who may signal whom, and whose processes RLIMIT_NPROC
counts. A program that is root in a user namespace is root to all of these. All programs share one group, which is how
they read our private folders; which folders a program sees at all is the sandbox's business.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_HIGH = range(0x70000000, 0x7FFD0000)
"""Between the ranges that containers and systemd use (systemd's UIDS-GIDS): 268 million ids, so that no two running
programs draw the same."""

_DYNAMIC = range(61184, 65520)
"""Range that systemd keeps for services without a user: for workers in a container that has only 65,536 ids."""


_DEEPEST = 32
"""Folders within each other that are given away or taken back: a hostile program makes thousands."""

_SETPRIV = Path("/usr/bin/setpriv")  # util-linux


@cache
def _ids() -> range:
    return _HIGH if _mapped(_HIGH, "uid_map") and _mapped(_HIGH, "gid_map") else _DYNAMIC


def _mapped(ids: range, file: str) -> bool:
    """Return whether this user namespace has all of these ids."""
    for line in Path("/proc/self", file).read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= ids.start and ids.stop <= first + count:
            return True
    return False


def draw() -> int:
    """Return a user id that no other program has, as far as chance goes."""
    return random.SystemRandom().choice(_ids()[1:])


def group() -> int:
    """Return the group of all sandboxed programs."""
    return _ids().start


def available() -> bool:
    """Return whether this process may start programs under other user ids."""
    return os.geteuid() == 0 and _SETPRIV.exists()


def command(user: int, groups: Sequence[int] = ()) -> list[str]:
    """Return a command that becomes another one, under a user id and without capabilities."""
    extra = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return [
        *(str(_SETPRIV), f"--reuid={user}", f"--regid={group()}", extra),
        *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"),
    ]


def device_groups(devices: Sequence[Path]) -> list[int]:
    """Return groups that devices are reserved for, which the worker lends with the device."""
    nodes = [path.stat() for path in devices if path.exists()]
    return sorted({node.st_gid for node in nodes if node.st_mode & 0o066 == 0o060 and node.st_gid != 0})


def share(path: Path) -> None:
    """Let sandboxed programs read a private folder of ours, or a file, and all beneath it. Needs root, else nothing."""
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # root without CAP_CHOWN, whose programs run under its own id
            for entry in _entries(path):
                _give(entry, -1, group(), 0o040)


def lend(folders: Sequence[Path], user: int) -> None:
    """Make a user the owner of folders, and of all beneath them. The paths must not contain links."""
    for folder in folders:
        for entry in _entries(folder):
            _give(entry, user, group(), 0)


def take_back(folders: Sequence[Path], user: int) -> None:
    """Make this process's user the owner of what a user owns in these folders, and let other programs read it.

    The folders hold what a hostile program left. It must have ended.
    """
    for folder in folders:
        for entry in _entries(folder):
            if os.fstat(entry).st_uid == user:
                _give(entry, os.geteuid(), group(), 0o040)


def unreachable(path: Path) -> bool:
    """Return whether other users cannot get as far as this path, whatever its own mode is."""
    real = path.resolve()
    return any(not folder.stat().st_mode & stat.S_IXOTH for folder in real.parents if folder.exists())


def _give(entry: int, user: int, group_id: int, mode: int) -> None:
    status = os.fstat(entry)
    os.fchown(entry, user, group_id)
    if mode and stat.S_ISDIR(status.st_mode):
        mode |= 0o010
    os.fchmod(entry, status.st_mode & 0o777 | mode)


def _entries(path: Path) -> Iterator[int]:
    """Yield descriptors of a path and of the files and folders beneath it, as far as :data:`_DEEPEST`.

    Leaves out links, and files of several names.
    """
    with contextlib.suppress(FileNotFoundError):
        yield from _entry(str(path), None, 0)


def _entry(name: str, folder: int | None, depth: int) -> Iterator[int]:
    entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        status = os.fstat(entry)
        if stat.S_ISDIR(status.st_mode):
            yield entry
            if depth < _DEEPEST:
                yield from _beneath(entry, depth + 1)
        elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            yield entry
    finally:
        os.close(entry)


def _beneath(folder: int, depth: int) -> Iterator[int]:
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # a link, a socket, a file that has gone
            yield from _entry(name, folder, depth)
