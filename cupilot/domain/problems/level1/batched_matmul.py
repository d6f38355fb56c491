"""Independent products of a batch of matrix pairs.

KernelBench level 1, number 3.
"""

import torch
import torch.nn as nn

BATCH = 128  # small: 16
M = 512  # small: 256
K = 1024  # small: 512
N = 2048  # small: 256


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(BATCH, M, K), torch.randn(BATCH, K, N)]


def get_init_inputs():
    return []
