"""A batch of matrices times one matrix.

KernelBench level 1, number 10.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 4
M = 1024  # small: 256
K = 2048  # small: 512
N = 768  # small: 384


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(BATCH, M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
