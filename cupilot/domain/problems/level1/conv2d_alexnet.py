"""The first convolution of AlexNet: a large kernel, stride four, with a bias.

KernelBench level 1, number 50.
"""

import torch
import torch.nn as nn

BATCH = 256  # small: 16
IN = 3
OUT = 96
HEIGHT = 224
WIDTH = 224


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv1(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, 11, 4, 2]
