"""Depthwise convolution with a square kernel."""

import torch
import torch.nn as nn

BATCH = 4
CHANNELS = 64
SIZE = 128


class Model(nn.Module):
    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(channels, channels, kernel_size, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, 5]
