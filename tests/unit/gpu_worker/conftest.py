"""Fixtures that tests of the GPU worker share: one judge, which has one problem open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cupilot.domain.evaluation import Preparation
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.sandbox.files import SOURCE_ROOT
from gpu_worker.targets.base import Access
from gpu_worker.targets.cpu_host import CpuHost
from tests.unit.gpu_worker.lines import PROBLEM
from tests.unit.gpu_worker.served import Served


@pytest.fixture(autouse=True)
def _references_are_closed() -> Iterator[None]:
    yield
    Served.close_all()


@pytest.fixture(scope="session")
def _patient_judge() -> Iterator[None]:
    """Make judges that no busy machine keeps from an answer."""
    access = CpuHost.judge_access
    folder = SOURCE_ROOT / "tests" / "patience"

    def with_patience(host: CpuHost) -> Access:
        known = access(host)
        return replace(known, read_only=(*known.read_only, folder))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuHost, "judge_device", "tests.patience.judge_device:PatientJudgeDevice")
        patch.setattr(CpuHost, "judge_access", with_patience)
        yield


@pytest.fixture(scope="session")
def work_dir(request: pytest.FixtureRequest, _patient_judge: None) -> Path:
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("gpu_worker"))


@pytest.fixture(scope="session")
def evaluator(work_dir: Path) -> Iterator[Evaluator]:
    with Evaluator(Target.CPU, work_dir, autotune=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def preparation(evaluator: Evaluator) -> Preparation:
    result = evaluator.prepare(PROBLEM)
    assert result.preparation is not None, result.failure
    return Preparation.model_validate_json(result.preparation.model_dump_json())
