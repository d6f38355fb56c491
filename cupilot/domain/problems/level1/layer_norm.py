"""Layer normalisation over the last three dimensions, with weight and bias of their full shape.

KernelBench level 1, number 40.
"""

import torch
import torch.nn as nn

BATCH = 16
FEATURES = 64
HEIGHT = 256  # small: 128
WIDTH = 256  # small: 128


class Model(nn.Module):
    def __init__(self, normalized_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)
        nn.init.normal_(self.ln.weight, mean=1.0, std=0.1)
        nn.init.normal_(self.ln.bias, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ln(x)


def get_inputs():
    return [torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)]


def get_init_inputs():
    return [(FEATURES, HEIGHT, WIDTH)]
