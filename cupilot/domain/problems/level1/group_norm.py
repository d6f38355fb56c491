"""Group normalisation: eight channels at a time.

KernelBench level 1, number 35.
"""

import torch
import torch.nn as nn

BATCH = 112  # small: 16
FEATURES = 64
GROUPS = 8
HEIGHT = 512  # small: 64
WIDTH = 512  # small: 64


class Model(nn.Module):
    def __init__(self, num_features: int, num_groups: int) -> None:
        super().__init__()
        self.gn = nn.GroupNorm(num_groups, num_features)
        nn.init.normal_(self.gn.weight, mean=1.0, std=0.1)
        nn.init.normal_(self.gn.bias, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gn(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)]


def get_init_inputs():
    return [FEATURES, GROUPS]
