"""Transposed three-dimensional convolution, a factor, and batch norm."""

import torch
import torch.nn as nn

BATCH = 8  # small: 1
CHANNELS = 16  # small: 4
FILTERS = 32  # small: 8
DEPTH = 16  # small: 6
SIZE = 32  # small: 10


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose3d(CHANNELS, FILTERS, 3)
        self.norm = nn.BatchNorm3d(FILTERS)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x) * 0.5)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIZE, SIZE)]


def get_init_inputs():
    return []
