"""Rotary position embedding, neighbours rotated."""

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
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, 2 * HALF), torch.randn(LENGTH, HALF), torch.randn(LENGTH, HALF)]


def get_init_inputs():
    return []
