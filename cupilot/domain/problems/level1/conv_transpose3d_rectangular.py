"""Transposed convolution of a volume and a kernel of three different sizes each.

KernelBench level 1, number 58.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 32  # small: 16
OUT = 16
DEPTH = 16  # small: 8
HEIGHT = 32  # small: 16
WIDTH = 64  # small: 24


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 5, 7)]
