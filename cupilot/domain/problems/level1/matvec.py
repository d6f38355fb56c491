"""Matrix-vector product with a very long reduced dimension.

KernelBench level 1, number 4.
"""

import torch
import torch.nn as nn

M = 2048
K = 1048576  # small: 16384


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, 1)]


def get_init_inputs():
    return []
