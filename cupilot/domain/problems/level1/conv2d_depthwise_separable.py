"""Depthwise convolution and then a pointwise one: what lies between needs no memory if both are one kernel.

KernelBench level 1, number 86.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 64
OUT = 128
HEIGHT = 512  # small: 96
WIDTH = 512  # small: 96


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, padding: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            in_channels, in_channels, kernel_size, padding=padding, groups=in_channels, bias=False
        )
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(self.depthwise(x))


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3, 1]
