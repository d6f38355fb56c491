"""Heartbeat files of the stack's own processes (:mod:`cupilot.health`): which of these hangs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from cupilot.health import last_beat
from cupilot.settings import Settings


def limit_seconds(settings: Mapping[str, str]) -> float:
    """Return how old a heartbeat may be: ``CUPILOT_HEALTH_SECONDS`` of the stack, as for a container's probe.

    The default where a setting is wrong, which the first process that is started says.
    """
    given = {name.removeprefix("CUPILOT_").lower(): value for name, value in settings.items()}
    try:
        return Settings.model_validate(given).health_seconds
    except ValidationError:
        return float(Settings.model_fields["health_seconds"].default)


def hangs(pulse: Path, started: float, limit: float) -> bool:
    """Return whether the process that was started then, by the monotonic clock, has recorded no round for so long.

    Not one that never did, nor where this process cannot write beside the file either, as on a full disk.
    """
    beat = last_beat(pulse)
    if beat is None or beat < started or time.monotonic() - beat < limit:
        return False
    probe = pulse.with_suffix(".probe")
    try:
        probe.write_text(pulse.read_text())
        probe.unlink()
    except OSError:
        return False
    return True
