"""Maximum of overlapping windows of an image.

KernelBench level 1, number 42.
"""

import torch
import torch.nn as nn

BATCH = 32  # small: 8
CHANNELS = 64  # small: 16
HEIGHT = 512  # small: 128
WIDTH = 512  # small: 128


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [4, 1, 1, 1]
