"""Compares the outputs of timed launches with the baseline's for the same inputs.

Which launches are looked at is the timer's business.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import torch

from gpu_worker.judge.deviation import Expected, Unit, deviation, plain

WINDOW_ELEMENTS = 2**22
"""So many of a larger timed output are compared,"""
WINDOWS = 64
"""in stretches: its first, its last, and one at a random place in each of the parts that all of it is cut into."""

TIMED_FACTOR = 1.25
"""Timed outputs are compared with PyTorch's own on other draws than the tolerance was measured on."""

TIE_SHARE = 1e-3
"""Indices of nearly equal values may differ, as of one that is computed and rounded; those of equal ones always may."""


@dataclass(frozen=True)
class OutputBounds:
    """Bounds on a timed output's error."""

    unit: Unit
    tolerance: float
    ties: bool


def timed_error(values: torch.Tensor, got: torch.Tensor, bounds: OutputBounds, chance: random.Random) -> float:
    """Return the error of an output's stretches, in units of its spread; infinite where too many indices differ."""
    windows = windows_of(values.numel(), chance)
    values, got = (torch.cat([tensor.reshape(-1)[window] for window in windows]) for tensor in (values, plain(got)))
    if bounds.ties:
        different = (values != got).double().mean()
        return 0.0 if float(different) <= TIE_SHARE else math.inf
    return deviation(Expected(values.to(got.dtype), bounds.unit), got)


def windows_of(count: int, chance: random.Random) -> list[slice]:
    """Choose which of ``count`` elements of a flattened output are compared: all, or stretches from first to last."""
    if count <= WINDOW_ELEMENTS:
        return [slice(0, count)]
    size = WINDOW_ELEMENTS // WINDOWS
    edges = [part * count // (WINDOWS - 2) for part in range(WINDOWS - 1)]
    random_places = [chance.randrange(start, end - size + 1) for start, end in itertools.pairwise(edges)]
    return [slice(start, start + size) for start in (0, *random_places, count - size)]
