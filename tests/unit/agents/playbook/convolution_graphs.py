"""Convolutions in one to three dimensions large enough for tiles, of even and of ragged sizes, and other products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.agents.playbook.graphs_under_test import _module, _of
from tests.unit.agents.playbook.operators_under_test import Case


def strided_transposed() -> dict[str, Case]:
    """Transposed convolutions most of whose taps fall on no input, in every combination of stride and dilation."""
    transposed = nn.ConvTranspose2d
    volume = nn.ConvTranspose3d(3, 16, (3, 5, 7), stride=2, padding=(1, 2, 3), output_padding=1)
    return {
        "transposed_1d": _module(nn.ConvTranspose1d(6, 16, 3, stride=2, padding=1, output_padding=1), 2, 6, 33),
        "transposed_even": _module(nn.ConvTranspose1d(8, 16, 4, stride=2, padding=1), 2, 8, 32),
        "transposed_grouped": _module(transposed(16, 32, 3, stride=(2, 3), dilation=2, groups=2), 1, 16, 15, 17),
        "transposed_both_even": _module(transposed(6, 32, 3, stride=2, dilation=2, padding=1), 1, 6, 15, 17),
        "transposed_wide_stride": _module(transposed(8, 16, 3, stride=5, dilation=2, padding=1), 1, 8, 9, 11),
        "transposed_4_over_6": _module(transposed(8, 16, 5, stride=4, dilation=6, padding=3), 1, 8, 9, 7),
        "transposed_3d": _module(nn.Sequential(volume, nn.GELU()), 1, 3, 6, 7, 9),
    }


def convolutions() -> dict[str, Case]:
    """Convolutions of all kinds, with what comes before and after."""
    mixed = nn.Conv2d(5, 35, (3, 5), padding=(2, 1), dilation=(1, 2), stride=(2, 1))
    weights = (24, 8, 3, 3)
    return {
        **strided_transposed(),
        "even": _module(nn.Conv2d(16, 32, 3, padding=1), 2, 16, 16, 32),
        "ragged": _module(nn.Sequential(nn.Conv2d(5, 35, 3), nn.ReLU()), 2, 5, 9, 11),
        "mixed": _module(mixed, 2, 5, 13, 31),
        "grouped": _module(nn.Conv2d(12, 32, 3, groups=2, padding=1), 2, 12, 9, 11),
        "one_dimension": _module(nn.Conv1d(6, 18, 5, stride=2, dilation=3, padding=4), 3, 6, 41),
        "three_dimensions": _module(nn.Conv3d(3, 16, (3, 2, 2), padding=1, stride=2), 1, 3, 9, 10, 21),
        "three_columns": _module(nn.Conv2d(8, 16, (3, 1), stride=(7, 1)), 2, 8, 90, 3),
        "wide_rows": _module(nn.Conv2d(4, 16, 3, padding=1), 1, 4, 5, 270),
        "pointwise": _module(nn.Conv2d(16, 24, 1), 2, 16, 9, 7),
        "transposed_dense": _module(nn.ConvTranspose2d(5, 18, (3, 7), padding=(1, 3)), 2, 5, 7, 40),
        "residual": _of(
            lambda x, w, c: F.relu(F.conv2d(x, w, padding=1) + c), (2, 8, 10, 17), (32, 8, 3, 3), (2, 32, 10, 17)
        ),
        "activated_before": _of(lambda x, w: F.conv2d(F.relu(x), w, padding=1), (1, 8, 9, 11), weights),
        "channels_last": _of(lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w, padding=1), (1, 9, 11, 8), weights),
        "bfloat16": _of(lambda x, w: F.conv2d(x, w, padding=1), (1, 8, 9, 11), weights, dtype=torch.bfloat16),
    }


def other_products() -> dict[str, Case]:
    """Products that are no convolutions, some of several runs of terms."""
    heads = ((2, 3, 33, 24), (2, 3, 35, 24), (2, 3, 35, 18))
    return {
        "linear": _of(lambda a, w, b: F.gelu(F.linear(a, w, b)), (37, 600), (70, 600), (70,)),
        "triangular": _of(lambda a, b: torch.tril(torch.tril(a) @ torch.tril(b)), (75, 75), (75, 75)),
        "attention": _of(F.scaled_dot_product_attention, *heads),
        "rolled": _of(lambda a, b: a @ torch.roll(b, 5), (24, 20), (20, 37)),
        "transposed_result": _of(lambda a, b: (a @ b).T.contiguous(), (40, 30), (30, 50)),
        "merged_heads": _of(lambda a, w: a.transpose(1, 2).reshape(2, 9, 40) @ w, (2, 5, 9, 8), (40, 33)),
    }
