"""First kernels of the playbook are believed on a real GPU: tensor cores, attention, packs, teams of blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.judge_kernels import playbook_kernels
from cupilot.domain import problems
from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import NumericsPolicy, Problem, Target

pytestmark = pytest.mark.gpu

FUSED = ("swiglu", "bmm_add", "conv2d_relu", "attention_causal", "top_k_probabilities", "transpose_add", "mlp_gelu")
SINGLE = ("softmax", "l2_norm", "group_norm", "matmul")
CASES = [(f"{name}_bfloat16", NumericsPolicy.HALF) for name in FUSED] + [(name, NumericsPolicy.FP32) for name in SINGLE]


@pytest.mark.parametrize(("name", "policy"), CASES)
def test_the_first_kernel_is_believed(
    judge: Callable[[Problem, Kernel], Evaluation],
    prepare: Callable[[Problem], Preparation],
    name: str,
    policy: NumericsPolicy,
) -> None:
    problem = problems.load(name, size="full", policy=policy)
    (kernel,) = playbook_kernels(problem, prepare(problem), Target.CUDA, 1)
    evaluation = judge(problem, kernel.kernel)
    print(f"\n{name}, {kernel.name}: {evaluation.verdict.value}, {evaluation.seconds:.1f} s")
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
