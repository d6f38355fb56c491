"""Run a script's cleanup however it is stopped: by Ctrl-C, by ``kill``, or by its terminal closing."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_well() -> None:
    """Make SIGTERM and SIGHUP end the script as Ctrl-C does, by an exception: every ``finally`` runs."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
