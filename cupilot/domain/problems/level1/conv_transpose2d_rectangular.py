"""Transposed convolution of a wide image with a rectangular kernel.

KernelBench level 1, number 69.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 2
IN = 64
OUT = 128
HEIGHT = 128  # small: 32
WIDTH = 256  # small: 64


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple[int, int]) -> None:
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 5)]
