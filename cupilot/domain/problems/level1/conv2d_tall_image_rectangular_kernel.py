"""Convolution of a tall image with a rectangular kernel.

KernelBench level 1, number 56.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 64
OUT = 128
HEIGHT = 512  # small: 64
WIDTH = 256  # small: 32


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple[int, int]) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (5, 7)]
