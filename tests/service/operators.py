"""A small operator, as users bring theirs, and settings of a stack whose jobs are short."""

RELU = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""

SHORT_JOBS = {"CUPILOT_COMPILE_BASELINE": "false", "CUPILOT_SWEEP_POINTS": "0"}
"""For tests that want a measured kernel and no more: no comparison with ``torch.compile``, no other tunables."""
