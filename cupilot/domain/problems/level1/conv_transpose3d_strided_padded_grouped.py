"""Transposed convolution of a volume in four groups, strided and padded, to exactly twice its size.

KernelBench level 1, number 72.
"""

import torch
import torch.nn as nn

BATCH = 8  # small: 2
IN = 32
OUT = 32
GROUPS = 4
DEPTH = 12  # small: 8
HEIGHT = 24  # small: 12
WIDTH = 48  # small: 16


class Model(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int, int],
        stride: tuple[int, int, int],
        padding: tuple[int, int, int],
        output_padding: tuple[int, int, int],
        groups: int,
    ) -> None:
        super().__init__()
        self.conv_transpose3d = nn.ConvTranspose3d(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose3d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 5, 7), (2, 2, 2), (1, 2, 3), (1, 1, 1), GROUPS]
