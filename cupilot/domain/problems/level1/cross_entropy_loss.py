"""Cross entropy of class scores against class numbers.

KernelBench level 1, number 95.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 32768  # small: 8192
CLASSES = 4096  # small: 1024


class Model(nn.Module):
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(predictions, targets)


def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
