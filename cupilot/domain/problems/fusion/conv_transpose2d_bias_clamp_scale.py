"""Transposed convolution, bias, bounds and factors."""

import torch
import torch.nn as nn

BATCH = 32  # small: 2
CHANNELS = 64  # small: 8
FILTERS = 128  # small: 16
SIZE = 64  # small: 20


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(CHANNELS, FILTERS, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(FILTERS, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.clamp(self.conv(x) + self.bias, 0.0, 1.0)
        return torch.clamp(x * 2.0, 0.0, 1.0) / 2.0


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
