"""Transposed convolution of a long signal, strided and dilated by two: every other result is zero.

KernelBench level 1, number 79.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 4
IN = 32
OUT = 64
LENGTH = 131072  # small: 8192


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
        self.conv1d_transpose = nn.ConvTranspose1d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d_transpose(x)


def get_inputs():
    return [torch.randn(BATCH, IN, LENGTH)]


def get_init_inputs():
    return [IN, OUT, 3, 2, 1, 2]
