"""Linear layer, group norm and leaky ReLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 1024  # small: 64
INNER = 2048  # small: 96
COLS = 256  # small: 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INNER, 8 * COLS)
        self.norm = nn.GroupNorm(8, 8 * COLS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(self.norm(self.linear(x)), 0.01)


def get_inputs():
    return [torch.randn(ROWS, INNER)]


def get_init_inputs():
    return []
