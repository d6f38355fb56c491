"""Matrix product whose three sizes are odd, so that no row is aligned and no tile divides them.

KernelBench level 1, number 8.
"""

import torch
import torch.nn as nn

M = 8205  # small: 1021
K = 2949  # small: 733
N = 5921  # small: 1091


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
