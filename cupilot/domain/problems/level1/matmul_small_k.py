"""Matrix product with a short inner dimension: the result is most of the traffic.

KernelBench level 1, number 7.
"""

import torch
import torch.nn as nn

M = 32768  # small: 4096
K = 64
N = 32768  # small: 4096


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
