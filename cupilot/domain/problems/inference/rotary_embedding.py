"""Rotary position embedding, halves rotated."""

import torch
import torch.nn as nn

BATCH = 8  # small: 2
HEADS = 32  # small: 3
LENGTH = 1024  # small: 40
HALF = 64  # small: 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        rotated = torch.cat([-second, first], dim=-1)
        return x * cos + rotated * sin


def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, 2 * HALF), torch.randn(LENGTH, 2 * HALF), torch.randn(LENGTH, 2 * HALF)]


def get_init_inputs():
    return []
