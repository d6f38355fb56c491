"""Eight-bit rows times their scales."""

import torch
import torch.nn as nn

TOKENS = 4096  # small: 96
HIDDEN = 4096  # small: 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return q.float() * scale


def get_inputs():
    return [torch.randint(-128, 128, (TOKENS, HIDDEN), dtype=torch.int8), torch.rand(TOKENS, 1)]


def get_init_inputs():
    return []
