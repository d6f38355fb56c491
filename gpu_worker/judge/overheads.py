"""Overheads of an imported file's blocks: what the judge's clock counts of a block beside the work of the file.

Messages, the head start that hides the file's host code, the turn that its process has to be given on the device, and
waiting for the end. They are measured in the runner's own process before the file is loaded, in blocks like all others
that launch next to nothing, so that nothing of the file's can make them long. The runner's clock may be below the
judge's by so much, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from gpu_worker.judge.runner_link import MOST_PARTS, RunnerLink
from gpu_worker.targets.base import JudgeDevice

BLOCKS = 12
"""Empty blocks of each number of parts."""

BELIEVED = 11
"""So many of them take at most what a block is believed to take beside its launches, but for the margin."""

MARGIN = 1.1
"""For blocks that launch something: they have orders to read and places to tell, and slots are filled before them."""

IDLE_SECONDS = 0.03
"""For so long a runner stands still before an empty block, as it does while slots are filled: its caches are cold."""

EMPTY_SECONDS = 10.0
"""Longest that an empty block may take."""

LOOKED_AT = 64
"""Words that are read after an empty block."""


@dataclass(frozen=True)
class Overheads:
    """Seconds of empty blocks."""

    blocks: Mapping[int, float] = field(default_factory=dict)
    """By number of parts."""
    look: float = 0.0
    """Of reading a few words of the device's memory after a block, when the device's turn is the runner's."""


def measure_overheads(
    link: RunnerLink, device: JudgeDevice, hold: Callable[[bool], float | None], starting: float
) -> Overheads:
    """Measure them; the first block may take ``starting`` seconds. None are where the judge's clock alone counts."""
    if not device.lends:
        return Overheads()
    link.run_empty(1, starting)
    words = torch.zeros(LOOKED_AT, device=device.torch_device)
    blocks, looks = {}, []
    for parts in range(1, MOST_PARTS + 1):
        times = []
        for _ in range(BLOCKS):
            hold(True)
            time.sleep(IDLE_SECONDS)
            device.flush_cache()
            device.synchronize()
            times.append(link.run_empty(parts, EMPTY_SECONDS, partial(hold, False)).host)
            began = time.perf_counter()
            words.cpu()
            looks.append(time.perf_counter() - began)
        blocks[parts] = MARGIN * _believed(times)
    return Overheads(blocks, _believed(looks))


def _believed(times: Sequence[float]) -> float:
    return sorted(times)[len(times) * BELIEVED // BLOCKS - 1]
