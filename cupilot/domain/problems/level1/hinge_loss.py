"""Hinge loss. The targets, -1 or 1, belong to columns.

KernelBench level 1, number 100.
"""

import torch
import torch.nn as nn

ROWS = 32768  # small: 4096
COLS = 32768  # small: 4096


class Model(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randint(0, 2, (COLS,)).float() * 2 - 1]


def get_init_inputs():
    return []
