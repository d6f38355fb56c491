"""Log-softmax over the rows of a matrix.

KernelBench level 1, number 24.
"""

import torch
import torch.nn as nn

ROWS = 4096  # small: 2048
COLS = 393216  # small: 8192


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=self.dim)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [1]
