"""Maximum over dilated windows of a volume; some planes are never looked at.

KernelBench level 1, number 43.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
CHANNELS = 32  # small: 8
DEPTH = 128  # small: 32
HEIGHT = 128  # small: 32
WIDTH = 128  # small: 32


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool3d(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [3, 2, 1, 3]
