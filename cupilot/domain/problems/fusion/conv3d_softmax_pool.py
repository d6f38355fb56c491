"""Three-dimensional convolution, softmax over channels, and pooling."""

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
        return F.max_pool3d(torch.softmax(self.conv(x), dim=1), 2)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIZE, SIZE)]


def get_init_inputs():
    return []
