"""A small problem, ``x * 2 + 1``, and kernels for it."""

from __future__ import annotations

from cupilot.domain.kernel import Kernel, LaunchPlan
from cupilot.domain.problem import Problem, Target

SOURCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.rand(64, 512)]

def get_init_inputs():
    return []
"""
PROBLEM = Problem(name="line", source=SOURCE)
KERNEL = r"""
#include "problem.h"
extern "C" void run(const float* x, float* out) {
  #pragma omp parallel for simd
  for (long i = 0; i < X_SIZE; ++i) out[i] = x[i] * 2.0f + 1.0f;
}
"""
SLOW_KERNEL = KERNEL.replace("#pragma omp parallel for simd", "for (volatile long k = 0; k < 2000000000; k = k + 1) {}")
PLAN = {"launches": [{"kernel": "run", "args": ["x", "out"]}]}


def kernel(source: str = KERNEL, plan: dict[str, object] | None = None) -> Kernel:
    return Kernel(target=Target.CPU, source=source, plan=LaunchPlan.model_validate(plan or PLAN))
