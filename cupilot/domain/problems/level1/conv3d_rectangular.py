"""Convolution of a volume and a kernel of three different sizes each.

KernelBench level 1, number 66.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 2
IN = 3
OUT = 64  # small: 32
DEPTH = 16  # small: 12
HEIGHT = 128  # small: 32
WIDTH = 128  # small: 32


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 5, 7)]
