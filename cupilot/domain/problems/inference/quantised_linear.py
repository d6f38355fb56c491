"""A linear layer whose weights have eight bits and a scale a row."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 512  # small: 32
HIDDEN = 2048  # small: 64
INNER = 2048  # small: 48


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight.to(x.dtype) * scale)


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN), torch.randint(-128, 128, (INNER, HIDDEN), dtype=torch.int8), torch.rand(INNER, 1)]


def get_init_inputs():
    return []
