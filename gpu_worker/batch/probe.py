"""Tells whether a card is to blame for steps that failed: a kernel that is known to work is judged on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cupilot.domain.evaluation import Failure, FailureKind
from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import Problem, Target
from gpu_worker.evaluator import Evaluator
from gpu_worker.turns import Cancelled

PROBE_SECONDS = 120.0
"""Of each of its two steps: starting a judge and a reference takes some seconds."""

_PROBLEM = Problem(
    name="probe",
    source="""import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
""",
)

_ON_CPU = """#include "problem.h"
extern "C" void run(const float* x, float* out) {
  for (long i = 0; i < X_SIZE; ++i) out[i] = x[i] > 0 ? x[i] : 0;
}
"""

_ON_CUDA = """#include "problem.h"
extern "C" __global__ void run(const float* x, float* out) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  out[i] = x[i] > 0 ? x[i] : 0;
}
"""

_KERNELS: Mapping[Target, tuple[str, dict[str, list[str]]]] = {
    Target.CPU: (_ON_CPU, {}),
    Target.CUDA: (_ON_CUDA, {"grid": ["X_SIZE / 256"], "block": ["256"]}),
}


class Stop(Protocol):
    """An event that several processes share."""

    def is_set(self) -> bool:
        """Return whether to stop."""


def fault(evaluator: Evaluator, stop: Stop) -> str | None:
    """Return why what is known to work fails on this card; None where it does not, or is stopped."""
    try:
        failure = _failure(evaluator, stop)
    except Cancelled:
        return None
    except Exception as error:  # whatever it is, the kernel is not the cause
        return f"{type(error).__name__}: {error}"
    return failure.message if failure is not None else None


def _failure(evaluator: Evaluator, stop: Stop) -> Failure | None:
    """Judge the kernel. Times that other work keeps from being believed are no failure of the card."""
    prepared = evaluator.prepare(_PROBLEM, timeout=PROBE_SECONDS, cancelled=stop.is_set)
    if prepared.preparation is None:
        return prepared.failure
    result = evaluator.evaluate(
        _PROBLEM,
        prepared.preparation,
        _kernel(evaluator.device.target),
        fresh=True,
        timeout=PROBE_SECONDS,
        cancelled=stop.is_set,
    )
    passed = {law.law for law in result.laws} == set(prepared.preparation.laws)
    if passed and result.failure is not None and result.failure.kind is FailureKind.INFRASTRUCTURE:
        return None
    return result.failure


def _kernel(target: Target) -> Kernel:
    source, launch = _KERNELS[target]
    plan = {"launches": [{"kernel": "run", "args": ["x", "out"], **launch}]}
    return Kernel(target=target, source=source, plan=LaunchPlan.model_validate(plan))
