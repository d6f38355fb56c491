"""SwiGLU of two projections."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 2048  # small: 40
HIDDEN = 2048  # small: 64
INNER = 4096  # small: 96


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return []
