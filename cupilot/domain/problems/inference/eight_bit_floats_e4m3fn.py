"""Rows scaled to floats of eight bits, with four bits of exponent and three of mantissa, and back."""

import torch
import torch.nn as nn

TOKENS = 4096  # small: 96
HIDDEN = 4096  # small: 128
LARGEST = 448.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / LARGEST
        return (x / scale).to(torch.float8_e4m3fn).to(torch.float32) * scale


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return []
