"""Instance normalisation: each image's channel by its own mean and variance.

KernelBench level 1, number 34.
"""

import torch
import torch.nn as nn

BATCH = 112  # small: 16
FEATURES = 64
HEIGHT = 512  # small: 64
WIDTH = 512  # small: 64


class Model(nn.Module):
    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(num_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)]


def get_init_inputs():
    return [FEATURES]
