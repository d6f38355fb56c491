"""Bias and GELU on a bfloat16 tensor."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096  # small: 96
HIDDEN = 4096  # small: 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + bias)


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16), torch.randn(HIDDEN, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
