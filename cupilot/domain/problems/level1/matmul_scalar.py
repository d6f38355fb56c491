"""A matrix times a Python number.

KernelBench level 1, number 5.
"""

import torch
import torch.nn as nn

ROWS = 65536  # small: 4096
COLS = 16384  # small: 4096


class Model(nn.Module):
    def forward(self, a: torch.Tensor, s: float) -> torch.Tensor:
        return a * s


def get_inputs():
    return [torch.randn(ROWS, COLS), 3.14]


def get_init_inputs():
    return []
