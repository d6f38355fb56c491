"""Convolution and softmax over channels."""

import torch
import torch.nn as nn

BATCH = 32  # small: 2
CHANNELS = 64  # small: 8
FILTERS = 128  # small: 16
SIZE = 64  # small: 20


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, FILTERS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.conv(x), dim=1)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return []
