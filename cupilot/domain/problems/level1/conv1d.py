"""Convolution of a long signal.

KernelBench level 1, number 67.
"""

import torch
import torch.nn as nn

BATCH = 32  # small: 2
IN = 64
OUT = 128
LENGTH = 131072  # small: 8192


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, LENGTH)]


def get_init_inputs():
    return [IN, OUT, 3]
