"""Which processes still run. A zombie does not: where nobody reaps orphans, as in many containers, it stays."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil


def runs(process: psutil.Process) -> bool:
    """Return whether it still runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def still_running(processes: Iterable[psutil.Process], seconds: float = 30.0) -> list[psutil.Process]:
    """Those that still run when all have ended or the time is over."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if runs(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if runs(process)]
    return left


def children(script: str) -> list[psutil.Process]:
    """Return processes that descend from this one and run a script, without the sandbox's own."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(script in argument for argument in process.cmdline()) and "bwrap" not in process.name():
                found.append(process)
        except psutil.Error:
            continue
    return found
