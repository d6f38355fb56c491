"""Scaled dot-product attention without a mask; the head dimension is 1024.

KernelBench level 1, number 97.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32  # small: 2
HEADS = 32  # small: 4
LENGTH = 512  # small: 128
DIM = 1024  # small: 128


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, DIM) for _ in range(3)]


def get_init_inputs():
    return []
