"""A two-dimensional batch of matrices times one matrix.

KernelBench level 1, number 11.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 2
ROWS = 256  # small: 32
COLS = 512  # small: 64
K = 256  # small: 128
N = 768  # small: 384


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bijk,kn->bijn", a, b)


def get_inputs():
    return [torch.randn(BATCH, ROWS, COLS, K), torch.randn(K, N)]


def get_init_inputs():
    return []
