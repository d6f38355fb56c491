"""Product of a matrix with a transposed one.

KernelBench level 1, number 17.
"""

import torch
import torch.nn as nn

M = 2048  # small: 512
K = 8192  # small: 2048
N = 4096  # small: 1024


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b.T)


def get_inputs():
    return [torch.randn(M, K), torch.randn(N, K)]


def get_init_inputs():
    return []
