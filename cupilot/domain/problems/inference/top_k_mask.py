"""Logits below the eighth largest of their row are masked."""

import torch
import torch.nn as nn

BATCH = 256  # small: 16
VOCABULARY = 8192  # small: 600


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        limit = torch.topk(logits, 8, dim=-1)[0][:, -1:]
        return torch.where(logits < limit, -1e4, logits)


def get_inputs():
    return [torch.randn(BATCH, VOCABULARY)]


def get_init_inputs():
    return []
