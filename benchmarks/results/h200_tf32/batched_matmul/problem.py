"""Independent products of a batch of matrix pairs.

KernelBench level 1, number 3.
"""

import torch
import torch.nn as nn

BATCH = 128
M = 512
K = 1024
N = 2048


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)


def get_inputs():
    return [torch.randn(BATCH, M, K), torch.randn(BATCH, K, N)]


def get_init_inputs():
    return []
