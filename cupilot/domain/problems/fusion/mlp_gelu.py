"""Two linear layers with GELU between."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 1024  # small: 64
INNER = 2048  # small: 96
COLS = 2048  # small: 80


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INNER, COLS)
        self.out = nn.Linear(COLS, INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.gelu(self.linear(x)))


def get_inputs():
    return [torch.randn(ROWS, INNER)]


def get_init_inputs():
    return []
