"""Rows quantised to eight bits by their largest value."""

import torch
import torch.nn as nn

TOKENS = 4096  # small: 96
HIDDEN = 4096  # small: 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127.0
        return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return []
