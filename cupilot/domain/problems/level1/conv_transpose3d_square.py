"""Transposed convolution of a cube with a cube-shaped kernel.

KernelBench level 1, number 61.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 48
OUT = 48
DEPTH = 64  # small: 16
HEIGHT = 64  # small: 16
WIDTH = 64  # small: 16


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3]
