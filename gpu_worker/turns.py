"""Locks the devices of this machine, by files in its temporary folder: one measurement at a time on each.

Whatever measures takes its turn here: workers, the command line, benchmarks. Two at once on a card would spoil each
other's times. A CPU is shared with everybody anyway; what can wait asks :func:`cpu_is_measured_on`. Containers that do
not share the folder are kept apart by the workers' leases in the database, which nothing here knows.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
CPU_LOCK = "cupilot-cpu.lock"
"""Shared by all that measure on this machine's CPU."""
LONGEST_NAME = 200
"""Bytes that are read of a holder's description of itself."""


class Cancelled(Exception):
    """The caller cancelled the call; nothing was concluded."""


@contextmanager
def exclusive_device(device: Device, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold a card's lock, or note that the CPU is measured on.

    Waits for the card's holder and logs once who that is. Raises :class:`Cancelled` where the wait is cancelled.
    """
    with _measuring_on_cpu() if device.target is Target.CPU else _card(device.uid, cancelled):
        yield


def cpu_is_measured_on() -> bool:
    """Return whether somebody measures on this machine's CPU now, so that background work had better wait."""
    try:
        descriptor = _opened(CPU_LOCK)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _card(uid: str, cancelled: Callable[[], bool]) -> Iterator[None]:
    descriptor = _opened(f"cupilot-{uid}.lock")
    try:
        if not _locked(descriptor):
            logger.warning("waiting: card %s is held by %s", uid, _holder(descriptor))
            while not _locked(descriptor):
                if cancelled():
                    raise Cancelled
                time.sleep(POLL_SECONDS)
        _write_holder(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _measuring_on_cpu() -> Iterator[None]:
    with ExitStack() as stack:
        with suppress(OSError):  # another user's file; the work itself needs no lock
            descriptor = _opened(CPU_LOCK)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def _opened(name: str) -> int:
    """Return a lock file of this machine; another user's can be read, and that is enough to lock it.

    Links are not followed: the folder is everybody's, and the holder writes its name into the file.
    """
    path = Path(tempfile.gettempdir()) / name
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_holder(descriptor: int) -> None:
    """Write the holder of the card into the file, for those that wait."""
    since = datetime.now(UTC)
    with suppress(OSError):  # another user's file
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since:%H:%M:%S} UTC".encode(), 0)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, LONGEST_NAME, 0).decode(errors="replace") or "another process"
