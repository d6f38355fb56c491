"""Means of disjoint windows of an image; the last rows and columns belong to none.

KernelBench level 1, number 45.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 4
CHANNELS = 64  # small: 16
HEIGHT = 2048  # small: 256
WIDTH = 2048  # small: 256


class Model(nn.Module):
    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(kernel_size=kernel_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [11]
