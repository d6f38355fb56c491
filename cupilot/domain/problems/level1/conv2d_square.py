"""Convolution of a square image with a square kernel.

KernelBench level 1, number 63.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 16
OUT = 128
HEIGHT = 1024  # small: 96
WIDTH = 1024  # small: 96


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3]
