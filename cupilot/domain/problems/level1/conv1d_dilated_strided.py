"""Convolution of a long signal, dilated and strided.

KernelBench level 1, number 76.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 4
IN = 64
OUT = 128
LENGTH = 524280  # small: 12288


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, LENGTH)]


def get_init_inputs():
    return [IN, OUT, 3, 3, 4]
