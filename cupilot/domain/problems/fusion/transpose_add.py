"""A transposed matrix plus another."""

import torch
import torch.nn as nn

ROWS = 4096  # small: 128
COLS = 4096  # small: 200


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.T + y


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(COLS, ROWS)]


def get_init_inputs():
    return []
