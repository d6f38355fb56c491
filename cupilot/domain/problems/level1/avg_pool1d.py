"""Sliding mean in one dimension; padding counts as zeros.

KernelBench level 1, number 44.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 8
FEATURES = 128  # small: 32
LENGTH = 65536  # small: 8192


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool1d(kernel_size=kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, LENGTH)]


def get_init_inputs():
    return [8, 1, 4]
