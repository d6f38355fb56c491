"""Convolution of a volume with a kernel of depth one in the last dimension.

KernelBench level 1, number 59.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 3
OUT = 64  # small: 32
DEPTH = 256  # small: 48
HEIGHT = 256  # small: 48
WIDTH = 10


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 3, 1)]
