"""Transposed convolution of a wide image with a square kernel.

KernelBench level 1, number 71.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 32
OUT = 32
HEIGHT = 512  # small: 96
WIDTH = 1024  # small: 192


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3]
