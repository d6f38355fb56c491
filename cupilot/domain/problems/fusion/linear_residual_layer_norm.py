"""Linear layer, skip connection and layer norm."""

import torch
import torch.nn as nn

ROWS = 1024  # small: 64
INNER = 2048  # small: 96


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INNER, INNER)
        self.norm = nn.LayerNorm(INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.linear(x))


def get_inputs():
    return [torch.randn(ROWS, INNER)]


def get_init_inputs():
    return []
