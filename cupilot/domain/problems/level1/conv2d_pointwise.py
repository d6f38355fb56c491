"""Pointwise convolution: a matrix product for every pixel.

KernelBench level 1, number 87.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 64
OUT = 128
HEIGHT = 1024  # small: 128
WIDTH = 1024  # small: 128


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv1d = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 1]
