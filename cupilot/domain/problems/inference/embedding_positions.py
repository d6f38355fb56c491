"""Token embeddings plus position embeddings."""

import torch
import torch.nn as nn

BATCH = 32  # small: 4
LENGTH = 512  # small: 24
VOCABULARY = 32000  # small: 100
HIDDEN = 1024  # small: 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions.weight


def get_inputs():
    return [torch.randint(0, VOCABULARY, (BATCH, LENGTH))]


def get_init_inputs():
    return []
