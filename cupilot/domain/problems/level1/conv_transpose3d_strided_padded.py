"""Transposed convolution of a volume, strided and padded. (KernelBench calls it grouped; its module has one group.)

KernelBench level 1, number 73.
"""

import torch
import torch.nn as nn

BATCH = 4  # small: 1
IN = 32
OUT = 32
DEPTH = 32  # small: 8
HEIGHT = 64  # small: 16
WIDTH = 128  # small: 24


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3, 2, 1]
