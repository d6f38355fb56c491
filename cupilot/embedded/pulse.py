"""Signs of progress that the stack's own processes leave (:mod:`workers.health`): which of them hangs."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

HANGS_SECONDS = 120.0
"""Without a sign for so long, as a container's probe allows by default. Steps and model calls do not count: signs come
from loops of their own."""


def last_sign(pulse: Path) -> float | None:
    """Return when the last sign was left, by the monotonic clock; None where there is none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(pulse.read_text())["monotonic"])
    return None


def hangs(pulse: Path, started: float) -> bool:
    """Return whether the process that was started then, by the monotonic clock, left signs and has stopped to.

    Where this process cannot write beside the file either, as on a full disk, nobody is to blame.
    """
    sign = last_sign(pulse)
    if sign is None or sign < started or time.monotonic() - sign < HANGS_SECONDS:
        return False
    probe = pulse.with_suffix(".probe")
    try:
        probe.write_text(pulse.read_text())
        probe.unlink()
    except OSError:
        return False
    return True
