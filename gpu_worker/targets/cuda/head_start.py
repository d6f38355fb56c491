"""Keeps a device busy in front of a timed block for so long that no launch is waited for within it.

The block's clock starts behind cache flushes. Where those end before the host has submitted what follows, the host's
time is in the device's, and it is never twice the same: a first call of PyTorch, or a graph of many launches, takes
longer to submit than one flush lasts. So the flush is repeated for as long as recent submissions took. What that does
for repeated speedups ``benchmarks.judge_self`` shows. Counts flushes only; knows neither torch nor the driver.
"""

from __future__ import annotations

import math
from collections import deque

JUDGE_SECONDS = 1e-3
"""Longest head start of PyTorch's blocks; a reference whose own work on the host takes longer is timed with it."""

RUNNER_SECONDS = 0.25e-3
"""Longest head start of a kernel's blocks, which the judge's clock has to allow for."""

FLUSHES_TIMED = 8
"""Of which the duration of one is told."""

RECENT = 8
MARGIN = 1.5
"""Submissions take longer by so much, now and then."""


class HeadStart:
    """Remembers how long submissions took."""

    def __init__(self, flush_seconds: float, longest: float) -> None:
        """Plan flushes of ``flush_seconds`` each, for at most ``longest`` seconds."""
        self._flush_seconds = max(flush_seconds, 1e-6)
        self._longest = longest
        self._recent: deque[float] = deque(maxlen=RECENT)

    def flushes(self) -> int:
        """Return the number of flushes to submit in front of the next block; at least one."""
        wanted = min(MARGIN * max(self._recent, default=0.0), self._longest)
        return max(1, math.ceil(wanted / self._flush_seconds))

    def record(self, seconds: float) -> None:
        """Record how long a block's submission took the host."""
        self._recent.append(seconds)
