"""Depthwise convolution with a kernel of one column.

KernelBench level 1, number 83.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 16
CHANNELS = 8
HEIGHT = 512  # small: 128
WIDTH = 512  # small: 128


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: tuple[int, int]) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(channels, channels, kernel_size, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS, (3, 1)]
