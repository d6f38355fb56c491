"""Transposed convolution with a square kernel."""

import torch
import torch.nn as nn

BATCH = 1
IN = 64
OUT = 64
SIZE = 64


class Model(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, SIZE, SIZE)]


def get_init_inputs():
    return [IN, OUT, 3]
