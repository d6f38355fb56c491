"""A tensor divided by its Frobenius norm: the whole of it is read before any of it is written.

KernelBench level 1, number 37.
"""

import torch
import torch.nn as nn

BATCH = 112  # small: 16
FEATURES = 64
HEIGHT = 512  # small: 64
WIDTH = 512  # small: 64


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.linalg.vector_norm(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)]


def get_init_inputs():
    return []
