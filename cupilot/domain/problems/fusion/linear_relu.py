"""Linear layer and ReLU."""

import torch
import torch.nn as nn

ROWS = 1024  # small: 64
INNER = 2048  # small: 96
COLS = 2048  # small: 80


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INNER, COLS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, INNER)]


def get_init_inputs():
    return []
