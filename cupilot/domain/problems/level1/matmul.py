"""Product of two square matrices.

KernelBench level 1, number 1.
"""

import torch
import torch.nn as nn

N = 4096  # small: 1024


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(N, N), torch.randn(N, N)]


def get_init_inputs():
    return []
