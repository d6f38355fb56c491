"""Depthwise convolution of a wide image with a square kernel.

KernelBench level 1, number 84.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 4
CHANNELS = 128  # small: 64
HEIGHT = 256  # small: 96
WIDTH = 512  # small: 192


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(channels, channels, kernel_size, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS, 3]
