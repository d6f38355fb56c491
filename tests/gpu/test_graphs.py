"""Short launches through CUDA graphs: both sides or neither, equal work takes equal time, wrong results are seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Evaluation, FailureKind, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import Problem
from tests.gpu import kernels, problems

pytestmark = pytest.mark.gpu

Judge = Callable[[Problem, Kernel], Evaluation]

LEFT_UNWRITTEN = {FailureKind.UNWRITTEN_OUTPUT, FailureKind.WRONG_VALUE, FailureKind.NON_DETERMINISTIC}
"""By where it shows: in a launch that is looked at at once, in one that is compared, or in one that passed before."""


def show(name: str, evaluation: Evaluation) -> None:
    found = evaluation.comparison()
    log = evaluation.build.log if evaluation.build else ""
    if found is not None:
        print(
            f"\n{name}: {evaluation.verdict.value}, graphs {found.graphs}, kernel {found.kernel_us.median:.2f} us, "
            f"eager {found.baseline_us.median:.2f} us, speedup {found.speedup.median:.3f} [{found.speedup.low:.3f}, "
            f"{found.speedup.high:.3f}], {found.pairs} pairs, {found.launches} launches, {evaluation.seconds:.1f} s"
        )
    print("\n".join(line for line in log.splitlines() if "single launches" in line))


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_tiny_kernel_is_compared_without_launch_overhead(judge: Judge, cooperative: bool) -> None:
    evaluation = judge(problems.scale(), kernels.scale(cooperative))
    show(f"scale, cooperative {cooperative}", evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    comparison = evaluation.comparison()
    assert comparison is not None
    if comparison.graphs:
        assert 0.5 < comparison.speedup.median < 2.0, "one trivial kernel against another"
    assert comparison.graphs or cooperative


def test_a_reference_that_waits_for_the_device_is_timed_by_launches(judge: Judge) -> None:
    evaluation = judge(problems.item(), kernels.scale())
    show("item", evaluation)
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    comparison = evaluation.comparison()
    assert comparison is not None
    assert not comparison.graphs
    assert evaluation.build is not None
    assert "timed by single launches" in evaluation.build.log
    again = judge(problems.scale(), kernels.scale())
    assert again.verdict is Verdict.AUDITED, "a capture that failed harms no later one"


def test_long_kernels_are_launched_one_by_one(judge: Judge) -> None:
    comparison = judge(problems.softmax(), kernels.softmax()).comparison()
    assert comparison is not None
    assert not comparison.graphs


def test_a_kernel_that_works_once_is_caught_in_a_graph(judge: Judge) -> None:
    source = """
__device__ int calls[X_SIZE];
extern "C" __global__ void scale(const float* x, float* out) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (calls[i]++ < 20) out[i] = x[i] * 2.0f;
}
"""
    honest = kernels.scale()
    evaluation = judge(problems.scale(), honest.model_copy(update={"source": '#include "problem.h"\n' + source}))
    assert evaluation.failure is not None
    assert evaluation.failure.kind in LEFT_UNWRITTEN


def test_equal_calls_take_equal_time_through_graphs() -> None:
    import torch

    from gpu_worker.judge.statistics import median_interval
    from gpu_worker.targets.cuda.judge import CudaJudge

    device = CudaJudge()
    inputs = [torch.randn(64, 64, device=device.torch_device) for _ in range(256)]
    results: list[torch.Tensor] = []

    def call(tensor: torch.Tensor) -> Callable[[], object]:
        return lambda: results.append(torch.softmax(tensor, dim=1))

    def seconds() -> float:
        results.clear()
        return device.baseline_seconds([device.captured([call(tensor) for tensor in inputs])]) / len(inputs)

    with torch.no_grad():
        ratios = [seconds() / seconds() for _ in range(30)]
        single = device.baseline_seconds([call(tensor) for tensor in inputs]) / len(inputs)
        results.clear()
        graph = device.captured([call(tensor) for tensor in inputs])
        for tensor in inputs:
            tensor.normal_()
        graph()
        device.synchronize()
        for tensor, result in zip(inputs, results[-len(inputs) :], strict=True):
            torch.testing.assert_close(result, torch.softmax(tensor, dim=1))
    found = median_interval(ratios)
    print(f"\nA/A through graphs: {found.median:.4f} [{found.low:.4f}, {found.high:.4f}]")
    print(f"{seconds() * 1e6:.2f} us each, {single * 1e6:.2f} us by single launches")
    assert found.median == pytest.approx(1.0, abs=0.02)
