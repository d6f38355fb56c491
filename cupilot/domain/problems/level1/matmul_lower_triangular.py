"""Product of two lower triangular matrices: zero above the diagonal, as the factors are.

KernelBench level 1, number 15.
"""

import torch
import torch.nn as nn

N = 4096  # small: 768


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tril(torch.matmul(a, b))


def get_inputs():
    return [torch.tril(torch.randn(N, N)), torch.tril(torch.randn(N, N))]


def get_init_inputs():
    return []
