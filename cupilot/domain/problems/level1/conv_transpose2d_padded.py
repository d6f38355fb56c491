"""Transposed convolution padded so that the image keeps its size.

KernelBench level 1, number 78.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
IN = 32
OUT = 32
HEIGHT = 512  # small: 96
WIDTH = 1024  # small: 160


class Model(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        stride: int,
        padding: tuple[int, int],
    ) -> None:
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 7), 1, (1, 3)]
