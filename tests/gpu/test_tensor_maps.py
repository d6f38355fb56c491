"""Tensor maps on a real GPU: confirmed under the memory checkers, swept, in graphs, counted; others are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation, ProfileSource, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from gpu_worker.evaluator import Evaluator
from gpu_worker.targets.cuda import counters
from tests.gpu import problems, tma_kernels
from tests.gpu.test_judging import describe

pytestmark = pytest.mark.gpu

Judge = Callable[[Problem, Kernel], Evaluation]


def test_a_kernel_with_tensor_maps_is_reproduced(
    evaluator: Evaluator, prepare: Callable[[Problem], Preparation]
) -> None:
    for problem, kernel in (
        (problems.softmax(), tma_kernels.softmax()),
        (problems.gelu_of_odd_sides(), tma_kernels.gelu()),
    ):
        evaluation = evaluator.confirm(problem, prepare(problem), kernel)
        describe(f"{problem.name} by tensor maps, confirmed", evaluation)
        assert evaluation.verdict is Verdict.REPRODUCED, evaluation.failure


def test_boxes_are_swept_and_copies_counted(judge: Judge) -> None:
    evaluation = judge(problems.gelu_of_odd_sides(), tma_kernels.gelu())
    describe("gelu by tensor maps, swept", evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    assert {point.tunables["TILE_ROWS"] for point in evaluation.sweep} == {32, 64}
    assert all(point.failure is None for point in evaluation.sweep), evaluation.sweep
    assert evaluation.build is not None
    assert evaluation.build.instructions["tma_load"] == evaluation.build.instructions["tma_store"] == 1
    assert evaluation.profile is not None
    if counters.profiler() is not None:
        assert evaluation.profile.source is ProfileSource.MEASURED, "a replay makes the maps too"
        print({name: round(value, 1) for name, value in evaluation.profile.metrics.items()})


def test_short_launches_with_tensor_maps_are_captured(judge: Judge) -> None:
    evaluation = judge(problems.gelu_of_odd_sides(129, 204), tma_kernels.gelu())
    describe("small gelu by tensor maps", evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    comparison = evaluation.comparison()
    assert comparison is not None
    assert comparison.graphs


def test_a_map_and_a_pointer_are_told_apart(judge: Judge) -> None:
    launch = tma_kernels.gelu().plan.launches[0]
    plan = tma_kernels.gelu().plan.model_copy(update={"launches": (launch.model_copy(update={"args": ("x", "out")}),)})
    evaluation = judge(problems.gelu_of_odd_sides(), tma_kernels.gelu().model_copy(update={"plan": plan}))
    assert evaluation.failure is not None
    print(f"\n{evaluation.failure.message}")
    assert evaluation.failure.kind is FailureKind.INVALID_PLAN
    assert "[128, 128]" in evaluation.failure.message
