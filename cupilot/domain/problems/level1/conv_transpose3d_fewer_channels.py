"""Transposed convolution of a cube to half of its channels.

KernelBench level 1, number 70.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 48
OUT = 24
DEPTH = 96  # small: 20
HEIGHT = 96  # small: 20
WIDTH = 96  # small: 20


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3]
