"""Mean squared error of two matrices.

KernelBench level 1, number 94.
"""

import torch
import torch.nn as nn

ROWS = 32768  # small: 4096
COLS = 32768  # small: 2048


class Model(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.mean((predictions - targets) ** 2)


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
