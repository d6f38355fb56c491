"""Batched product and a sum."""

import torch
import torch.nn as nn

BATCH = 32  # small: 2
ROWS = 256  # small: 40
INNER = 512  # small: 64
COLS = 256  # small: 48


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b) + c


def get_inputs():
    return [torch.randn(BATCH, ROWS, INNER), torch.randn(BATCH, INNER, COLS), torch.randn(BATCH, ROWS, COLS)]


def get_init_inputs():
    return []
