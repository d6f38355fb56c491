"""Honest kernels of every family are believed on a real GPU. Cheapest in file order, which shares warm judges."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.judge_kernels import kernels_for
from cupilot.domain import problems
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem, Target
from gpu_worker.targets.cuda import counters
from tests.gpu.honest import CASES, HONEST

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("name", "index"), CASES)
def test_an_honest_kernel_is_believed(
    judge: Callable[[Problem, Kernel], Evaluation],
    prepare: Callable[[Problem], Preparation],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    index: int,
) -> None:
    monkeypatch.setattr(counters, "profiler", lambda: None)
    problem = problems.load(name)
    kernel = kernels_for(problem, prepare(problem), Target.CUDA, HONEST[name])[index]
    evaluation = judge(problem, kernel.kernel)
    print(f"\n{name}, {kernel.name}: {evaluation.verdict.value}, {evaluation.seconds:.1f} s")
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
