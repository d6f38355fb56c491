"""A heartbeat file, for a container's liveness probe (``python -m workers health``) and the embedded stack.

A process that is alive may still hang. Each loop that must go on (the scheduler's, a worker's heartbeat, the webhooks')
writes a file in every round; the probe fails where the file is old. A database or broker that is away is no lack of
progress: a restart would not bring it back. Ages are measured with the monotonic clock, which all processes of a
machine share, so that a step of the wall clock kills nothing.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path


class Pulse:
    """Writes the heartbeat file; without a path, nothing."""

    def __init__(self, path: str | None, role: str) -> None:
        self._path = Path(path) if path else None
        self._role = role

    def beat(self) -> None:
        """Record a round of the loop. Errors of the disk are left for the probe to report."""
        if self._path is None:
            return
        text = json.dumps({"role": self._role, "pid": os.getpid(), "monotonic": time.monotonic()})
        with suppress(OSError):
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(self._path)

    def end(self) -> None:
        """Remove the file, because the process ends in good order."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def last_beat(path: Path) -> float | None:
    """Return when a round was last recorded, by the monotonic clock; None where none was."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(path.read_text())["monotonic"])
    return None


def check(path: str | None, limit_seconds: float) -> tuple[bool, str]:
    """Return whether the process that writes this file makes progress, and a sentence about it."""
    if not path:
        return False, "no health file is configured; set CUPILOT_HEALTH_FILE for the process and for this command"
    try:
        beat = json.loads(Path(path).read_text())
        age = time.monotonic() - float(beat["monotonic"])
        role, pid = str(beat["role"]), int(beat["pid"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return False, f"no sign of life at {path}: {type(error).__name__}"
    # A negative age: the file is older than the machine's last start.
    fresh = 0 <= age <= limit_seconds
    return fresh, f"{role} (process {pid}) made progress {age:.1f} s ago, limit {limit_seconds:.0f} s"
