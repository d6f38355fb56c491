"""First kernels of compiled graphs in 16 bits are believed on a real GPU: tensor cores, attention, packs and orders."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.judge_kernels import playbook_kernels
from cupilot.domain import problems
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target

pytestmark = pytest.mark.gpu

NAMES = ("swiglu", "bmm_add", "conv2d_relu", "attention_causal", "top_k_probabilities", "transpose_add", "mlp_gelu")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_kernel_of_a_compiled_graph_is_believed(
    judge: Callable[[Problem, Kernel], Evaluation], prepare: Callable[[Problem], Preparation], name: str
) -> None:
    problem = problems.load(f"{name}_bfloat16", size="full", policy=NumericsPolicy.HALF)
    (kernel,) = playbook_kernels(problem, prepare(problem), Target.CUDA, 1)
    evaluation = judge(problem, kernel.kernel)
    print(f"\n{name}, {kernel.name}: {evaluation.verdict.value}, {evaluation.seconds:.1f} s")
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
