"""Imported files on a real GPU: Triton and load_inline are audited, other streams and kept results are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.evaluation import Evaluation, FailureKind, Preparation, Verdict
from cupilot.domain.imported import ImportedKernel, KernelKind, with_function
from cupilot.domain.problem import Problem, Target
from gpu_worker.evaluator import Evaluator
from tests.gpu import problems

pytestmark = pytest.mark.gpu

Prepare = Callable[[Problem], Preparation]

TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def softmax_rows(x, out, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * cols + at, mask=at < cols, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * cols + at, powers / tl.sum(powers, axis=0), mask=at < cols)

class ModelNew(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x):
        out = torch.empty_like(x)
        cols = x.shape[-1]
        softmax_rows[(x.numel() // cols,)](x, out, cols, BLOCK=triton.next_power_of_2(cols))
        return out
"""

LINE = Problem(
    name="line",
    source="""
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0

def get_inputs():
    return [torch.rand(4096, 4096)]

def get_init_inputs():
    return []
""",
)

INLINE = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

CUDA = """
#include <torch/extension.h>
__global__ void line(const float4* x, float4* out, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) {
    float4 v = x[i];
    out[i] = make_float4(v.x * 2.f + 1.f, v.y * 2.f + 1.f, v.z * 2.f + 1.f, v.w * 2.f + 1.f);
  }
}
torch::Tensor run_line(torch::Tensor x) {
  auto out = torch::empty_like(x);
  long n = x.numel() / 4;
  line<<<(n + 255) / 256, 256>>>((const float4*)x.data_ptr<float>(), (float4*)out.data_ptr<float>(), n);
  return out;
}
"""
built = load_inline("line", "torch::Tensor run_line(torch::Tensor x);", CUDA, functions=["run_line"])

class ModelNew(nn.Module):
    def forward(self, x):
        return built.run_line(x)
'''

EXTENSION = """
#include <torch/extension.h>

__global__ void scaled(const float4* x, const float* w, float4* out, long n, int cols, float eps) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) {
    float4 v = x[i], m = reinterpret_cast<const float4*>(w)[i % (cols / 4)];
    out[i] = make_float4(v.x * m.x + eps, v.y * m.y + eps, v.z * m.z + eps, v.w * m.w + eps);
  }
}

torch::Tensor forward(torch::Tensor x, torch::Tensor weight, double eps) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous(), "x must be contiguous and on the GPU");
  auto out = torch::empty_like(x);
  long n = x.numel() / 4;
  scaled<<<(n + 255) / 256, 256>>>(
      (const float4*)x.data_ptr<float>(), weight.data_ptr<float>(), (float4*)out.data_ptr<float>(), n, x.size(1), eps);
  return out;
}

torch::Tensor twice(torch::Tensor x) { return x + x; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward, py::arg("x"), py::arg("weight"), py::arg("eps"));
  m.def("twice", &twice);
}
"""

SCALED = Problem(
    name="scaled",
    source="""
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features))
        self.eps = eps

    def forward(self, x):
        return x * self.weight + self.eps

def get_inputs():
    return [torch.rand(4096, 4096)]

def get_init_inputs():
    return [4096, 0.25]
""",
)

ESCAPE = """
import torch
import torch.nn as nn

torch.cuda.synchronize = lambda *a, **k: None
side = None

class ModelNew(nn.Module):
    def forward(self, x):
        global side
        side = side or torch.cuda.Stream()
        out = torch.empty_like(x)
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            torch.add(x * 2.0, 1.0, out=out)
        return out
"""
"""Works on a stream that nobody waits for, long after forward has returned."""

KEPT = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.turns = 0

    def forward(self, x):
        self.turns += 1
        if self.turns < 12:
            self.last = x * 2.0 + 1.0
        return self.last
"""
"""Right while it is audited, then the same result again."""


@pytest.fixture
def judged(evaluator: Evaluator, prepare: Prepare) -> Callable[[Problem, str], Evaluation]:
    def of(problem: Problem, source: str) -> Evaluation:
        kernel = ImportedKernel(target=Target.CUDA, source=source)
        return evaluator.evaluate(problem, prepare(problem), kernel, timeout=400)

    return of


@pytest.mark.parametrize(
    ("problem", "source"),
    [(problems.softmax(), TRITON), (LINE, INLINE), (SCALED, EXTENSION)],
    ids=["triton", "load_inline", "extension"],
)
def test_an_honest_file_is_audited(judged: Callable[[Problem, str], Evaluation], problem: Problem, source: str) -> None:
    result = judged(problem, source)
    assert result.verdict is Verdict.AUDITED, result.failure
    assert result.kernel_kind is KernelKind.IMPORTED
    comparison = result.comparison()
    assert comparison is not None
    assert result.handover_us is None, "its results are read where it left them"
    print(f"\n{comparison.kernel_us} against {comparison.baseline_us} us")


OWN_BUFFER = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = None

    def forward(self, x):
        if self.out is None:
            self.out = torch.empty_like(x)
        return torch.add(torch.mul(x, 2.0, out=self.out), 1.0, out=self.out)
"""

GRAPH = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls <= 6:
            return x * 2.0 + 1.0
        if self.calls == 7:
            self.x, self.graph = x.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.out = self.x * 2.0 + 1.0
        self.x.copy_(x)
        self.graph.replay()
        return self.out
"""
"""Captures when its results are read in place already."""


@pytest.mark.parametrize("source", [OWN_BUFFER, GRAPH], ids=["a buffer of its own", "a graph"])
def test_what_cannot_stay_where_it_is_is_copied(judged: Callable[[Problem, str], Evaluation], source: str) -> None:
    result = judged(LINE, source)
    assert result.verdict is Verdict.AUDITED, result.failure
    assert result.handover_us is not None


FORGED = """
import torch
import torch.nn as nn
from gpu_worker.targets.cuda.lent import Lent

Lent.keep = lambda self, result, wanted: {place}
Lent.free = {free}

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.empty_like(x)
"""


@pytest.mark.parametrize(
    ("place", "free", "kinds"),
    [
        ("0", "lambda self: [[0, 2**27]]", {FailureKind.UNWRITTEN_OUTPUT, FailureKind.POLICY_BREACH}),
        ("2**20", "lambda self: []", {FailureKind.POLICY_BREACH}),
        ("2**45", "Lent.free", {FailureKind.POLICY_BREACH}),
        ("0", "lambda self: [[0, 2**45]]", {FailureKind.POLICY_BREACH}),
    ],
    ids=["free memory", "memory in use", "memory of nobody", "all memory is free"],
)
def test_a_forged_place_earns_nothing(
    judged: Callable[[Problem, str], Evaluation], place: str, free: str, kinds: set[FailureKind]
) -> None:
    result = judged(LINE, FORGED.format(place=place, free=free))
    assert result.failure is not None, result.comparisons
    assert result.failure.kind in kinds | {FailureKind.WRONG_VALUE}, result.failure


def test_an_extension_of_several_functions_says_how_to_choose(judged: Callable[[Problem, str], Evaluation]) -> None:
    result = judged(SCALED, EXTENSION.replace('m.def("forward"', 'm.def("once"'))
    assert result.failure is not None
    assert result.failure.details["code"] == "several_functions", result.failure
    assert "once, twice" in result.failure.message
    result = judged(SCALED, with_function(EXTENSION, "twice"))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.WRONG_VALUE, result.failure


CAUGHT = {
    FailureKind.WRONG_VALUE,
    FailureKind.UNWRITTEN_OUTPUT,
    FailureKind.NON_DETERMINISTIC,
    FailureKind.INSENSITIVE,
}

ROWS: dict[str, tuple[str, ...]] = {"another stream": ("A1", "A2"), "a kept result": ("A7", "B7", "D4")}
"""Of the catalogue of known cheats, for ``docs/exploits.md``."""


@pytest.mark.parametrize("source", [ESCAPE, KEPT], ids=list(ROWS))
def test_a_dishonest_file_is_caught(judged: Callable[[Problem, str], Evaluation], source: str) -> None:
    result = judged(LINE, source)
    assert result.failure is not None, result.comparisons
    assert not result.verdict.counts
    assert result.failure.kind in CAUGHT, result.failure
