"""Triplet loss: an anchor must be nearer to its positive than to its negative, by a margin.

KernelBench level 1, number 99.
"""

import torch
import torch.nn as nn

ROWS = 32768  # small: 4096
COLS = 8192  # small: 1024


class Model(nn.Module):
    def __init__(self, margin: float) -> None:
        super().__init__()
        self.loss = nn.TripletMarginLoss(margin=margin)

    def forward(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        return self.loss(anchor, positive, negative)


def get_inputs():
    return [torch.randn(ROWS, COLS) for _ in range(3)]


def get_init_inputs():
    return [1.0]
