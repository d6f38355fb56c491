"""The CPU in judges that believe their clock however busy the machine is; loaded in the judge's own process.

For tests of what is done with a measurement. Whether one may be believed is tested with the judge's own device.
"""

from __future__ import annotations

import math
from typing import Any

from gpu_worker.judge import blocks, timing
from gpu_worker.targets.cpu_judge import CpuJudgeDevice

SHORT_BLOCK_SECONDS = 0.001
"""Filling the slots for the product's blocks of 8 ms takes seconds where launches are short."""


class PatientJudgeDevice(CpuJudgeDevice):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        blocks.LATE_SECONDS = math.inf

    def kernel_seconds(self, host: float, runner: float, launches: int, overhead: float = 0.0) -> float | None:  # noqa: ARG002
        return host


class QuickJudgeDevice(PatientJudgeDevice):
    """Times short blocks, and takes any scatter: for tests in which no time has to be right."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        timing.WIDEST = math.inf
        self.block_seconds = SHORT_BLOCK_SECONDS
