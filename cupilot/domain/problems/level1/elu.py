"""Exponential linear unit.

KernelBench level 1, number 31.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 4096  # small: 4096
COLS = 393216  # small: 4096


class Model(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.elu(x, alpha=self.alpha)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [1.0]
