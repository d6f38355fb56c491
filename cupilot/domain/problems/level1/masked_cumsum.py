"""Running sum of the elements that a mask selects.

KernelBench level 1, number 93.
"""

import torch
import torch.nn as nn

ROWS = 32768  # small: 2048
COLS = 32768  # small: 4096


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x * mask, dim=self.dim)


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randint(0, 2, (ROWS, COLS)).bool()]


def get_init_inputs():
    return [1]
