"""Transposed convolution of a long signal.

KernelBench level 1, number 64.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 4
IN = 128
OUT = 128
LENGTH = 65536  # small: 2048


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d_transpose(x)


def get_inputs():
    return [torch.randn(BATCH, IN, LENGTH)]


def get_init_inputs():
    return [IN, OUT, 3]
