"""Overheads of an imported file's blocks: what the judge's clock counts of a block beside the work of the file.

Messages, the head start that hides the file's host code, the turn that its process has to be given on the device, and
waiting for the end. They are measured in the runner's own process before the file is loaded, in blocks like all others
that launch next to nothing, so that nothing of the file's can make them long. The runner's clock may be below the
judge's by so much, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpu_worker.judge.runner_link import MOST_PARTS, RunnerLink
from gpu_worker.targets.base import JudgeDevice

BLOCKS = 12
"""Empty blocks of each number of parts."""

SHARE = 0.75
"""Quantile of their seconds that is believed, so that few honest blocks seem longer than they were."""

EMPTY_SECONDS = 10.0
"""Longest that an empty block may take."""


def overheads_of_blocks(
    link: RunnerLink, device: JudgeDevice, hold: Callable[[bool], float | None], starting: float
) -> dict[int, float]:
    """Return the seconds of an empty block by its number of parts; the first may take ``starting`` seconds.

    None are measured where the judge's clock alone counts.
    """
    if not device.lends:
        return {}
    link.run_empty(1, starting)
    return {parts: _overhead(link, device, hold, parts) for parts in range(1, MOST_PARTS + 1)}


def _overhead(link: RunnerLink, device: JudgeDevice, hold: Callable[[bool], float | None], parts: int) -> float:
    times = []
    for _ in range(BLOCKS):
        hold(True)
        device.flush_cache()
        device.synchronize()
        times.append(link.run_empty(parts, EMPTY_SECONDS, partial(hold, False)).host)
    return sorted(times)[int(SHARE * BLOCKS)]
