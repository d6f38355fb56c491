"""Matrix product with a long inner dimension and a small result.

KernelBench level 1, number 6.
"""

import torch
import torch.nn as nn

M = 256
K = 524288  # small: 16384
N = 256


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
