"""Product of a diagonal matrix, given as its diagonal, and a dense one: each row is scaled.

KernelBench level 1, number 12.
"""

import torch
import torch.nn as nn

N = 4096  # small: 2048
M = 4096  # small: 2048


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.unsqueeze(1) * b


def get_inputs():
    return [torch.randn(N), torch.randn(N, M)]


def get_init_inputs():
    return []
