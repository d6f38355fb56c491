"""Transposed convolution of a volume, strided and dilated by two: seven of eight results are zero.

KernelBench level 1, number 77.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 32
OUT = 64
DEPTH = 16  # small: 8
HEIGHT = 32  # small: 12
WIDTH = 32  # small: 12


class Model(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        padding: int,
        dilation: int,
    ) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3, 2, 1, 2]
