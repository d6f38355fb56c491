"""Give judges that this process starts a device of :mod:`tests.patience.judge_device`. Loads no pytest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.peaks import PeakStore
from gpu_worker.targets.base import Access
from gpu_worker.targets.cpu_host import CpuHost

PEAKS = Path(__file__).parents[2] / ".pytest_cache/d/gpu_worker/peaks"
"""Folder in which tests with an evaluator of their own keep the peaks of this machine."""


def use_patient_judges(put: Callable[[type[CpuHost], str, object], None], *, quick: bool) -> None:
    """Change the ``cpu`` target with ``put``, which sets attributes; ``quick`` where no time has to be right."""
    access = CpuHost.judge_access

    def with_patience(host: CpuHost) -> Access:
        known = access(host)
        return replace(known, read_only=(*known.read_only, Path(__file__).parent))

    device = "QuickJudgeDevice" if quick else "PatientJudgeDevice"
    put(CpuHost, "judge_device", f"tests.patience.judge_device:{device}")
    put(CpuHost, "judge_access", with_patience)


def share_peaks(put: Callable[[type[PeakStore], str, object], None]) -> None:
    """Take this machine's peaks from where other tests keep them: measuring takes as long as a small job."""
    begin = PeakStore.__init__

    def shared(store: PeakStore, target: Any, sandbox: Any, folder: Path) -> None:  # noqa: ARG001
        begin(store, target, sandbox, PEAKS)

    put(PeakStore, "__init__", shared)
