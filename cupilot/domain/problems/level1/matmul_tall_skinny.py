"""Matrix product of a tall and a wide matrix: the reduced dimension is 32.

KernelBench level 1, number 9.
"""

import torch
import torch.nn as nn

M = 32768  # small: 4096
K = 32
N = 32768  # small: 4096


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
