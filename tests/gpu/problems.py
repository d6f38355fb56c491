"""References for the GPU tests: small enough for seconds, large enough to keep a data-centre GPU busy."""

from __future__ import annotations

from cupilot.domain.problem import NumericsPolicy, Problem

_FILE = """import torch
import torch.nn as nn


class Model(nn.Module):
{model}

def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def _problem(name: str, model: str, inputs: str, policy: NumericsPolicy) -> Problem:
    body = "".join(f"    {line}\n" for line in model.strip().splitlines())
    return Problem(name=name, source=_FILE.format(model=body, inputs=inputs), policy=policy)


def softmax(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    model = "def forward(self, x):\n    return torch.softmax(x, dim=1)"
    return _problem("softmax", model, "torch.randn(8192, 4096)", policy)


def softmax_between_0_and_1(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """Inputs as ``torch.rand`` draws them, which a series near zero is enough for."""
    model = "def forward(self, x):\n    return torch.softmax(x, dim=1)"
    return _problem("softmax_between_0_and_1", model, "torch.rand(8192, 4096)", policy)


def softmax_of_few_rows(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """16 MiB each way: a cache that is not emptied holds the inputs of several launches."""
    model = "def forward(self, x):\n    return torch.softmax(x, dim=1)"
    return _problem("softmax_of_few_rows", model, "torch.randn(1024, 4096)", policy)


def softmax_of_long_rows(blocks: int, policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """For clusters of so many blocks with 96 KB of shared memory each, more of them than the card holds at once."""
    model = "def forward(self, x):\n    return torch.softmax(x, dim=1)"
    return _problem("softmax_of_long_rows", model, f"torch.randn(1024, {blocks} * 24576)", policy)


def scale(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """So small that a launch is most of it."""
    return _problem("scale", "def forward(self, x):\n    return x * 2.0", "torch.randn(64, 64)", policy)


def running_sum(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """Four rows, which a thread each goes through: most of the card has nothing to do."""
    return _problem(
        "running_sum", "def forward(self, x):\n    return torch.cumsum(x, 1)", "torch.rand(4, 8192)", policy
    )


def item(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    """Asks for a result meanwhile, which no graph can."""
    model = "def forward(self, x):\n    return x * 2.0 if x.sum().item() < 1e30 else x"
    return _problem("item", model, "torch.randn(64, 64)", policy)


def layer_norm(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    model = """
def __init__(self):
    super().__init__()
    self.norm = nn.LayerNorm(4096)

def forward(self, x):
    return self.norm(x)
"""
    return _problem("layer_norm", model, "torch.randn(8192, 4096)", policy)


def gelu(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    model = "def forward(self, x):\n    return torch.nn.functional.gelu(x)"
    return _problem("gelu", model, "torch.randn(4096, 8192)", policy)


def gelu_of_odd_sides(rows: int = 4001, cols: int = 4012) -> Problem:
    """Rows of 16 byte units, and nothing else that divides."""
    model = "def forward(self, x):\n    return torch.nn.functional.gelu(x)"
    return _problem(f"gelu_of_{rows}x{cols}", model, f"torch.randn({rows}, {cols})", NumericsPolicy.FP32)


def row_sum(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    model = "def forward(self, x):\n    return torch.sum(x, dim=1)"
    return _problem("row_sum", model, "torch.randn(8192, 8192)", policy)


def matmul(policy: NumericsPolicy = NumericsPolicy.FP32) -> Problem:
    model = "def forward(self, a, b):\n    return torch.matmul(a, b)"
    return _problem("matmul", model, "torch.randn(2048, 2048), torch.randn(2048, 2048)", policy)
