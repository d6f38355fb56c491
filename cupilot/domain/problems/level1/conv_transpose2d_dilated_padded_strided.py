"""Transposed convolution with stride five and dilation two: two thirds of the result are zero.

KernelBench level 1, number 81.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 1
IN = 32
OUT = 64
HEIGHT = 64  # small: 32
WIDTH = 128  # small: 48


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
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 3, 5, 1, 2]
