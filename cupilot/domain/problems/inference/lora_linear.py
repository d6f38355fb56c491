"""A linear layer with a low-rank addition."""

import torch
import torch.nn as nn

TOKENS = 1024  # small: 40
HIDDEN = 2048  # small: 64
INNER = 2048  # small: 48


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(HIDDEN, 16, bias=False)
        self.up = nn.Linear(16, INNER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return []
