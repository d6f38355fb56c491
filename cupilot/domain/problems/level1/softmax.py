"""Softmax over the rows of a matrix.

KernelBench level 1, number 23.
"""

import torch
import torch.nn as nn

ROWS = 4096  # small: 2048
COLS = 393216  # small: 8192


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
