"""Let judges that are started meanwhile have a device of :mod:`tests.patience.judge_device`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_worker.targets.base import Access
from gpu_worker.targets.cpu_host import CpuHost


@contextmanager
def patient_judges(*, quick: bool = False) -> Iterator[None]:
    """Make judges that no busy machine keeps from an answer; ``quick`` where no time has to be right."""
    access = CpuHost.judge_access

    def with_patience(host: CpuHost) -> Access:
        known = access(host)
        return replace(known, read_only=(*known.read_only, Path(__file__).parent))

    with pytest.MonkeyPatch.context() as patch:
        device = "QuickJudgeDevice" if quick else "PatientJudgeDevice"
        patch.setattr(CpuHost, "judge_device", f"tests.patience.judge_device:{device}")
        patch.setattr(CpuHost, "judge_access", with_patience)
        yield
