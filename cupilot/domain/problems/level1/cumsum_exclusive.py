"""Running sum of what stands before each element; the last element plays no part.

KernelBench level 1, number 92.
"""

import torch
import torch.nn as nn

ROWS = 32768  # small: 2048
COLS = 32768  # small: 4096


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, rest = x.narrow(self.dim, 0, 1), x.narrow(self.dim, 0, x.shape[self.dim] - 1)
        return torch.cumsum(torch.cat((torch.zeros_like(first), rest), dim=self.dim), dim=self.dim)


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [1]
