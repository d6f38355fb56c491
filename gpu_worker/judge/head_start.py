"""Times an imported file's blocks by the judge's wall clock, without what the host takes to begin and to answer.

While a file's host code submits its launches, the judge keeps the device busy with work of its own. Processes take
turns on a device: what a file computes adds to that work, wherever it begins, so nothing is won by leaving it out or by
working earlier. A part of an order without launches takes what has to be taken off: the judge's work, messages, wake-up
and wait. That is measured before the file is loaded, while the runner holds nothing but code of ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from gpu_worker.judge.runner_link import RunnerLink
from gpu_worker.targets.base import JudgeDevice

SECONDS = 2e-3
"""Of the judge's own work. A file's Python, woken up, needs 0.5 ms until the device has something to do."""

WARM_UPS = 3
ROUNDS = 15
EMPTY_PARTS = 3
TIMEOUT_SECONDS = 60.0
"""For one empty order; the first one begins to use the device."""

Hold = Callable[[bool], float | None]
"""Stops or continues the runner; the moment since or until which it stands still, None where it holds no host code."""


class HeadStart:
    """The judge's own work in front of each part of an order, and the time of a part without launches."""

    def __init__(self, device: JudgeDevice, flushes: int) -> None:
        self._device = device
        self._flushes = flushes
        self._first = self._later = 0.0

    def begin(self) -> None:
        """Keep the device busy; returns while it is."""
        for _ in range(self._flushes):
            self._device.flush_cache()

    def measure(self, link: RunnerLink, hold: Hold) -> None:
        """Measure empty orders of a runner that has loaded nothing yet."""
        rounds: list[Sequence[float]] = []
        for _ in range(WARM_UPS + ROUNDS):
            hold(True)
            self._device.synchronize()
            rounds.append(link.run_empty(EMPTY_PARTS, TIMEOUT_SECONDS, lambda: hold(False), self.begin))
        kept = rounds[WARM_UPS:]
        self._first = statistics.median(parts[0] for parts in kept)
        self._later = statistics.median(seconds for parts in kept for seconds in parts[1:])

    def taken_off(self, parts: int) -> float:
        """Return the seconds of so many parts in which the file did nothing."""
        return self._first + (parts - 1) * self._later


def head_start(device: JudgeDevice, link: RunnerLink, hold: Hold) -> HeadStart | None:
    """Return the head start of a runner that has loaded nothing yet; None where the device is the host itself."""
    flushes = device.flushes_in(SECONDS)
    if not flushes:
        return None
    made = HeadStart(device, flushes)
    made.measure(link, hold)
    return made
