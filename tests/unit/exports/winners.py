"""Winners for the exporters: small problems of several families with kernels for both targets."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import torch

from cupilot.domain.evaluation import Evaluation, Preparation, Verdict
from cupilot.domain.hardware import Device, Environment
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import NumericsPolicy, Problem, ProblemFacts, Target
from cupilot.domain.roofline import place
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.exports import Winner
from cupilot.schemas import CandidateView, JobView, KernelView, ProblemView, Report
from gpu_worker.reference.reference import Reference
from gpu_worker.targets.cpu_judge import CpuJudgeDevice
from tests.unit.cupilot.factories import build, comparison, law, peaks

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CPU_FLAGS = ("-std=c++17", "-O2", "-march=native", "-fopenmp", "-shared", "-fPIC", "-fno-exceptions", "-Wl,-z,defs")
CUDA_FLAGS = (
    "--gpu-architecture=sm_90a", "--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"
)  # fmt: skip

_FILE = """import torch
import torch.nn as nn
{before}

class Model(nn.Module):
    def __init__(self{parameters}):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{constructor}]
"""


def source(forward: str, inputs: str, init: str = "pass", **more: str) -> str:
    """A problem file."""
    values = {"before": "", "parameters": "", "arguments": "x", "constructor": "", **more}
    return _FILE.format(forward=forward, inputs=inputs, init=init, **values)


def facts_of(text: str, policy: NumericsPolicy = NumericsPolicy.FP32) -> ProblemFacts:
    """As the judge finds them out."""
    device = CpuJudgeDevice(threads=1, cache_bytes=2**20, memory_bytes=2**30)
    hash_ = Problem(name="p", source=text, policy=policy).content_hash()
    with torch.no_grad():
        return Reference(text, policy, device, seed=1).facts(hash_)


def winner(
    name: str,
    text: str,
    code: Kernel,
    *,
    facts: ProblemFacts | None = None,
    verdict: Verdict = Verdict.REPRODUCED,
    evaluation: Evaluation | None = None,
    **changes: Any,
) -> Winner:
    """A kernel as the export is given it."""
    facts = facts or facts_of(text)
    report = report_of(name, text, code, facts, evaluation or evaluation_of(code, facts, verdict), **changes)
    return Winner.of(report)


def evaluation_of(code: Kernel, facts: ProblemFacts, verdict: Verdict) -> Evaluation:
    """A record of a measurement that was not made."""
    cuda = code.target is Target.CUDA
    device = Device(
        target=code.target, uid="GPU-1" if cuda else "cpu-1", name="NVIDIA H200" if cuda else "Test CPU",
        arch="sm_90" if cuda else "x86-64-avx2", units=2, memory_bytes=2**33, cache_bytes=2**20,
    )  # fmt: skip
    environment = Environment(device=device, driver="580.1", cuda="13.0" if cuda else None, torch="2.11")
    return Evaluation(
        kernel_hash=code.content_hash(),
        problem_hash=facts.problem_hash,
        verdict=verdict,
        build=build().model_copy(update={"flags": CUDA_FLAGS if cuda else CPU_FLAGS}),
        laws=(law().model_copy(update={"tolerance": 1e-4}),),
        comparisons=(comparison(1.5),),
        placement=place(facts, peaks()),
        environment=environment,
        tunables=code.plan.values(),
    )


def report_of(
    name: str, text: str, code: Kernel, facts: ProblemFacts, evaluation: Evaluation, **changes: Any
) -> Report:
    """Return the service's answer."""
    strategy = Strategy(techniques=(TechniqueUse(id="vector_loads", parameters={"width": 4}),), rationale="because")
    job, problem, candidate = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    view = {
        "id": job, "state": "succeeded", "final": True, "target": code.target, "agents": "playbook", "method": {},
        "problem": {"id": problem, "name": name, "policy": facts.policy, "hash": facts.problem_hash},
        "budgets": {}, "seed": 0, "priority": "normal", "labels": {}, "generation": 0, "generations": 1,
        "candidates": 1, "verdicts": {}, "candidate_states": {}, "wall_seconds": 1, "gpu_seconds": 1, "cost_usd": 0,
        "created_at": NOW,
    }  # fmt: skip
    shown = {
        "id": candidate, "ordinal": 3, "generation": 0, "operator": "initial", "state": "evaluated",
        "verdict": evaluation.verdict, "techniques": [], "parents": [], "repair_rounds": 0, "survives": True,
        "created_at": NOW, "job": job, "lineage": [], "strategy": strategy, "evaluation": evaluation,
        "kernel": KernelView(hash=code.content_hash(), target=code.target, source=code.source, plan=code.plan),
    }  # fmt: skip
    return Report(
        job=JobView.model_validate(view),
        problem=ProblemView(id=str(problem), name=name, builtin=False, source=text),
        candidate=CandidateView.model_validate({**shown, **changes}),
        preparation=Preparation(
            facts=facts,
            placement=place(facts, peaks()),
            peaks=peaks(),
            environment=evaluation.environment,
            baseline_us=comparison().baseline_us,
            laws=("own",),
            tolerances={"own": 1e-4},
            admission={"zeros": True},
        ),
        headline="It is fast.",
        next_steps=[],
    )


def cpu(code: str, *launches: Launch, workspace: tuple[Workspace, ...] = (), **tunables: int) -> Kernel:
    """C++ with a plan."""
    choices = {name: Tunable(value=value, choices=(value, value + 1)) for name, value in tunables.items()}
    plan = LaunchPlan(launches=launches, tunables=choices, workspace=workspace)
    return Kernel(target=Target.CPU, source=f'#include "problem.h"\n#include <cmath>\n{code}', plan=plan)


GELU = source("return torch.nn.functional.gelu(x)", "torch.randn(64, 96)")
GELU_CPU = cpu(
    """extern "C" void gelu(const float* x, float* out) {
  // "quotes", \\\\backslashes\\\\, trigraphs ??/ and \u00fcml\u00e4uts \u2603 survive: \"\"\" ''' \\n
  #pragma omp parallel for
  for (long long i = 0; i < X_SIZE; i += STEP)
    for (long long j = i; j < i + STEP; ++j) out[j] = 0.5f * x[j] * (1.0f + std::erf(x[j] * 0.70710678f));
}
""",
    Launch(kernel="gelu", args=("x", "out")),
    STEP=32,
)

NORM = source(
    "return self.norm(x)", "torch.randn(48, 64)", "self.norm = nn.LayerNorm(width)", parameters=", width",
    constructor="64",
)  # fmt: skip
NORM_CPU = cpu(
    """extern "C" void moments(const float* x, double* partial) {
  for (long long row = 0; row < X_ROWS; ++row) {
    double sum = 0, squares = 0;
    for (long long col = 0; col < X_COLS; ++col) sum += x[row * X_COLS + col];
    for (long long col = 0; col < X_COLS; ++col) {
      double d = x[row * X_COLS + col] - sum / X_COLS;
      squares += d * d;
    }
    partial[2 * row] = sum / X_COLS;
    partial[2 * row + 1] = 1.0 / std::sqrt(squares / X_COLS + 1e-5);
  }
}
extern "C" void scale(const float* x, const float* weight, const float* bias, const double* partial, float* out) {
  for (long long row = 0; row < X_ROWS; ++row)
    for (long long col = 0; col < X_COLS; ++col)
      out[row * X_COLS + col] =
          (x[row * X_COLS + col] - partial[2 * row]) * partial[2 * row + 1] * weight[col] + bias[col];
}
""",
    Launch(kernel="moments", args=("x", "partial")),
    Launch(kernel="scale", args=("x", "norm_weight", "norm_bias", "partial", "out")),
    workspace=(Workspace(name="partial", bytes="X_ROWS * 16"),),
)

EXTREMES = source("return torch.max(x, dim=1)", "torch.randn(40, 72)")
EXTREMES_CPU = cpu(
    """extern "C" void extremes(const float* x, float* values, long long* indices) {
  for (long long row = 0; row < X_ROWS; ++row) {
    long long best = 0;
    for (long long col = 1; col < X_COLS; ++col)
      if (x[row * X_COLS + col] > x[row * X_COLS + best]) best = col;
    values[row] = x[row * X_COLS + best];
    indices[row] = best;
  }
}
""",
    Launch(kernel="extremes", args=("x", "out0", "out1")),
)

PRODUCT = source("return scale * (a @ b.T)", "torch.randn(24, 32), torch.randn(16, 32), 2.0", arguments="a, b, scale")
PRODUCT_CPU = cpu(
    """extern "C" void product(const float* a, const float* b, float* out) {
  for (int i = 0; i < A_DIM0; ++i)
    for (int j = 0; j < B_DIM0; ++j) {
      float sum = 0;
      for (int k = 0; k < A_COLS; ++k) sum += a[i * A_STRIDE0 + k] * b[j * B_STRIDE0 + k];
      out[i * B_DIM0 + j] = (float)SCALE * sum;
    }
}
""",
    Launch(kernel="product", args=("a", "b", "out")),
)

CPU_CASES = {
    "gelu": (GELU, GELU_CPU),
    "layer norm": (NORM, NORM_CPU),
    "max & where": (EXTREMES, EXTREMES_CPU),
    "product": (PRODUCT, PRODUCT_CPU),
}
