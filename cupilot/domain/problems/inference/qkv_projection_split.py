"""A fused projection, split into heads of queries, keys and values, and their sum."""

import torch
import torch.nn as nn

BATCH = 8  # small: 2
LENGTH = 512  # small: 24
HEADS = 16  # small: 4
WIDTH = 64  # small: 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
        return q * 0.125 + k - v


def get_inputs():
    return [torch.randn(BATCH, LENGTH, HEADS * WIDTH)]


def get_init_inputs():
    return []
