"""Product of two symmetric matrices. One triangle of each says everything; the product is not symmetric.

KernelBench level 1, number 13.
"""

import torch
import torch.nn as nn

N = 4096  # small: 768


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def symmetric(n: int) -> torch.Tensor:
    matrix = torch.randn(n, n)
    return (matrix + matrix.T) / 2


def get_inputs():
    return [symmetric(N), symmetric(N)]


def get_init_inputs():
    return []
