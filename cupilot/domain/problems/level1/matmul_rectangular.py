"""Product of two rectangular matrices.

KernelBench level 1, number 2.
"""

import torch
import torch.nn as nn

M = 2048  # small: 512
K = 8192  # small: 2048
N = 4096  # small: 1024


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
