"""Convolution of a square image with a rectangular kernel, padded and dilated.

KernelBench level 1, number 80.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 32
OUT = 64
HEIGHT = 512  # small: 64
WIDTH = 512  # small: 64


class Model(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        stride: int,
        padding: tuple[int, int],
        dilation: tuple[int, int],
    ) -> None:
        super().__init__()
        self.conv2d = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, dilation=dilation, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (5, 9), 1, (2, 4), (2, 3)]
