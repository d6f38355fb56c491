"""Sliding maximum in one dimension, dilated by three.

KernelBench level 1, number 41.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 8
FEATURES = 192  # small: 48
LENGTH = 65536  # small: 8192


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool1d(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, LENGTH)]


def get_init_inputs():
    return [8, 1, 4, 3]
