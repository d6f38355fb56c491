"""Fixtures that tests of the GPU worker share: one judge, which has one problem open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot.domain.evaluation import Preparation
from cupilot.domain.problem import Target
from gpu_worker.evaluator import Evaluator
from tests.patience.judges import patient_judges
from tests.unit.gpu_worker.lines import PROBLEM
from tests.unit.gpu_worker.served import Served


@pytest.fixture(autouse=True)
def _references_are_closed() -> Iterator[None]:
    yield
    Served.close_all()


@pytest.fixture(scope="module", autouse=True)
def _quick_judges() -> Iterator[None]:
    """Start quick judges in these modules, and in no others: tests of cheating kernels need the judge's own clock."""
    with patient_judges(quick=True):
        yield


@pytest.fixture(scope="session")
def work_dir(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("gpu_worker"))


@pytest.fixture(scope="session")
def evaluator(work_dir: Path) -> Iterator[Evaluator]:
    with Evaluator(Target.CPU, work_dir, autotune=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def preparation(evaluator: Evaluator) -> Preparation:
    with patient_judges(quick=True):  # made before a module's own fixtures
        result = evaluator.prepare(PROBLEM)
    assert result.preparation is not None, result.failure
    return Preparation.model_validate_json(result.preparation.model_dump_json())
