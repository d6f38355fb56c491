"""RMS norm of a sum with the residual stream."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 2048
HIDDEN = 1024


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x + residual, (HIDDEN,), self.weight, 1e-6)


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return []
