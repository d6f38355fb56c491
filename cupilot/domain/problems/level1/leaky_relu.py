"""Leaky rectified linear unit: x where positive, a small share of x elsewhere.

KernelBench level 1, number 20.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 4096  # small: 4096
COLS = 393216  # small: 4096


class Model(nn.Module):
    def __init__(self, negative_slope: float) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, negative_slope=self.negative_slope)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [0.01]
