"""Three-dimensional convolution, leaky ReLU and GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8  # small: 1
CHANNELS = 16  # small: 4
FILTERS = 32  # small: 8
DEPTH = 16  # small: 6
SIZE = 32  # small: 10


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(CHANNELS, FILTERS, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.leaky_relu(self.conv(x), 0.01))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIZE, SIZE)]


def get_init_inputs():
    return []
