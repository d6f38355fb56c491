"""Transposed convolution in four groups, strided, padded and dilated: every other row of the result is zero.

KernelBench level 1, number 75.
"""

import torch
import torch.nn as nn

BATCH = 16  # small: 2
IN = 32
OUT = 64
GROUPS = 4
HEIGHT = 128  # small: 32
WIDTH = 256  # small: 48


class Model(nn.Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
    ) -> None:
        super().__init__()
        self.conv_transpose2d = nn.ConvTranspose2d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=False,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose2d(x)


def get_inputs():
    return [torch.randn(BATCH, IN, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN, OUT, (3, 5), (2, 3), (1, 2), (2, 1), GROUPS]
