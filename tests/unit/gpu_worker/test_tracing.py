"""``Evaluator.trace`` on the real judge: what the AI CUDA Engineer's conversions are compared by."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupilot.domain.evaluation import FailureKind, Tracing
from cupilot.domain.problem import Problem, ProblemFacts
from cupilot.domain.sameness import difference
from gpu_worker.evaluator import Evaluator
from tests.stages import shorten

pytestmark = pytest.mark.judge

HEAD = "import os\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
INPUTS = "def get_inputs():\n    return [torch.rand(8, 16)]\ndef get_init_inputs():\n    return [16]\n"
MODULE = """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.linear = nn.Linear(n, 4)
    def forward(self, x):
        return torch.relu(self.linear(self.norm(x)))
"""
FUNCTION = """
def module_fn(x, weight, bias, shape, eps, linear_weight, linear_bias):
    x = F.layer_norm(x, shape, weight, bias, eps)
    return torch.relu(F.linear(x, linear_weight, linear_bias))

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)
        self.linear = nn.Linear(n, 4)
    def forward(self, x, fn=module_fn):
        norm, linear = self.norm, self.linear
        return fn(x, norm.weight, norm.bias, norm.normalized_shape, norm.eps, linear.weight, linear.bias)
"""

WRONG = {
    "another operation": (FUNCTION.replace("torch.relu(", "F.gelu("), "the original's is aten.relu"),
    "another constant": (FUNCTION.replace("bias, eps)", "bias, 1e-3)", 1), "operation 1 is"),
    "an operation more": (FUNCTION.replace("linear_bias))", "linear_bias)) + 0.0"), "goes on with aten.add"),
    "parameters in another order": (
        FUNCTION.replace("        self.norm = nn.LayerNorm(n)\n        self.linear = nn.Linear(n, 4)",
                         "        self.linear = nn.Linear(n, 4)\n        self.norm = nn.LayerNorm(n)"),
        "its tensors are",
    ),
    "a constant answer": (
        FUNCTION.replace("    x = F.layer_norm", "    return torch.zeros(8, 4)\n    x = F.layer_norm"),
        "the original's is aten.native_layer_norm",
    ),
}  # fmt: skip

HOSTILE = {
    "exit": ("os._exit(0)", FailureKind.INVALID_PROBLEM, "exit code 0"),
    "process": ("os.system('touch /tmp/cupilot-was-here') and os.fork()", FailureKind.INVALID_PROBLEM, ""),
    "write": ("open('/usr/planted', 'w')", FailureKind.INVALID_PROBLEM, "ead-only"),
    "loop": ("exec('while True: pass')", FailureKind.TIMEOUT, "the file"),
}


def problem(body: str) -> Problem:
    return Problem(name="conversion", source=HEAD + body + INPUTS)


@pytest.fixture(scope="module")
def original(evaluator: Evaluator) -> ProblemFacts:
    return known(evaluator.trace(problem(MODULE)))


def known(tracing: Tracing) -> ProblemFacts:
    assert tracing.facts is not None, tracing.failure
    return tracing.facts


def test_a_good_conversion_is_the_same_call_by_call(evaluator: Evaluator, original: ProblemFacts) -> None:
    assert difference(original, known(evaluator.trace(problem(FUNCTION)))) is None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_conversion_is_told_what_differs(evaluator: Evaluator, original: ProblemFacts, name: str) -> None:
    body, said = WRONG[name]
    assert said in (difference(original, known(evaluator.trace(problem(body)))) or "")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_conversion_ends_with_a_reason_and_reaches_nothing(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    statement, kind, said = HOSTILE[name]
    marks = FUNCTION.replace("    x = F.layer_norm", f"    {statement}\n    x = F.layer_norm")
    if kind is FailureKind.TIMEOUT:
        shorten(monkeypatch.setattr, "the first forward pass", seconds=1.0)
    found = evaluator.trace(problem(marks))
    assert found.failure is not None
    assert found.failure.kind is kind, found.failure
    assert said in found.failure.message, found.failure
    assert not Path("/tmp/cupilot-was-here").exists()
    assert not Path("/usr/planted").exists()
