"""Batch normalisation in training mode: statistics of this batch, and the running ones are updated.

KernelBench level 1, number 33.
"""

import torch
import torch.nn as nn

BATCH = 64  # small: 16
FEATURES = 64
HEIGHT = 512  # small: 64
WIDTH = 512  # small: 64


class Model(nn.Module):
    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(num_features)
        nn.init.normal_(self.bn.weight, mean=1.0, std=0.1)
        nn.init.normal_(self.bn.bias, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)]


def get_init_inputs():
    return [FEATURES]
