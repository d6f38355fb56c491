"""Means of overlapping windows of a volume; padding counts as zeros.

KernelBench level 1, number 46.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
CHANNELS = 32  # small: 8
DEPTH = 128  # small: 32
HEIGHT = 128  # small: 32
WIDTH = 256  # small: 64


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool3d(kernel_size=kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [3, 2, 1]
