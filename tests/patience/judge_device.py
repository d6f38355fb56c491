"""The CPU in a judge that believes its clock however busy the machine is; loaded in the judge's own process.

For tests of what is done with a measurement. Whether one may be believed is tested with the judge's own device.
"""

from __future__ import annotations

import math
from typing import Any

from gpu_worker.judge import timing
from gpu_worker.targets.cpu_judge import CpuJudgeDevice


class PatientJudgeDevice(CpuJudgeDevice):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        timing.LATE_SECONDS = math.inf

    def kernel_seconds(self, host: float, runner: float, launches: int) -> float | None:  # noqa: ARG002
        return host
