"""Matrix product whose left factor is stored transposed.

KernelBench level 1, number 16.
"""

import torch
import torch.nn as nn

M = 2048  # small: 512
K = 8192  # small: 1024
N = 4096  # small: 768


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a.T, b)


def get_inputs():
    return [torch.randn(K, M), torch.randn(K, N)]


def get_init_inputs():
    return []
