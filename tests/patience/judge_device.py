"""The CPU in judges that believe their clock however busy the machine is; loaded in the judge's own process.

For tests of what is done with a measurement. Whether one may be believed is tested with the judge's own device.
"""

from __future__ import annotations

import math
from typing import Any

from gpu_worker.judge import blocks, session, timing
from gpu_worker.targets.cpu_judge import CpuJudgeDevice

SHORT_BLOCK_SECONDS = 0.001
"""Filling the slots for the product's blocks of 8 ms takes seconds where launches are short."""

SMALL_CACHE_BYTES = 2**20
"""The judge fills several times as much before each block, and evicts twice as much."""


class PatientJudgeDevice(CpuJudgeDevice):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        blocks.LATE_SECONDS = math.inf

    def kernel_seconds(self, host: float, runner: float, launches: int, overhead: float = 0.0) -> float | None:  # noqa: ARG002
        return host


class QuickJudgeDevice(PatientJudgeDevice):
    """Times few short blocks, of a small cache, and takes any scatter: for tests in which no time has to be right."""

    def __init__(self, cache_bytes: int, **options: Any) -> None:
        super().__init__(cache_bytes=min(cache_bytes, SMALL_CACHE_BYTES), **options)
        timing.WIDEST = self.precision = math.inf
        session.BASELINE_SECONDS = self.block_seconds = SHORT_BLOCK_SECONDS
