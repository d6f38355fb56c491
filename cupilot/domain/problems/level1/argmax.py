"""Index of the maximum over the middle dimension. The inner dimension is odd, so rows are not aligned.

KernelBench level 1, number 51.
"""

import torch
import torch.nn as nn

BATCH = 128  # small: 16
REDUCED = 4096  # small: 1024
INNER = 4095  # small: 1023


class Model(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.argmax(x, dim=self.dim)


def get_inputs():
    return [torch.randn(BATCH, REDUCED, INNER)]


def get_init_inputs():
    return [1]
