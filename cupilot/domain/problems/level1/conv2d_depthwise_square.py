"""Depthwise convolution of a square image with a square kernel.

KernelBench level 1, number 82.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 4
CHANNELS = 64
HEIGHT = 512  # small: 128
WIDTH = 512  # small: 128


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
