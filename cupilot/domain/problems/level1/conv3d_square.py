"""Convolution of a cube with a cube-shaped kernel.

KernelBench level 1, number 54.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 3
OUT = 64  # small: 32
DEPTH = 64  # small: 24
HEIGHT = 64  # small: 24
WIDTH = 64  # small: 24


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3]
