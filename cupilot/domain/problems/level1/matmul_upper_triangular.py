"""Product of two upper triangular matrices: zero below the diagonal, as the factors are.

KernelBench level 1, number 14.
"""

import torch
import torch.nn as nn

N = 4096  # small: 768


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.triu(torch.matmul(a, b))


def get_inputs():
    return [torch.triu(torch.randn(N, N)), torch.triu(torch.randn(N, N))]


def get_init_inputs():
    return []
