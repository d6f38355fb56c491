"""Rules for special functions: formulas in calls that graphs are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_SHIFTS = 8
"""Steps up by which an argument becomes large enough for the series below."""
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132)
"""Bernoulli numbers over their orders (Abramowitz and Stegun 6.3.18)."""

_MIDDLE = ((0.886226899, -1.645349621, 0.914624893, -0.140543331),
           (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801))  # fmt: skip
_TAIL = ((-1.970840454, -1.624906493, 3.429567803, 1.641345311), (1.0, 3.543889200, 1.637067800))
"""Numerators and denominators of a first guess, lowest powers first; steps of Newton's method follow."""
_MIDDLE_ENDS = 0.7


def _polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Evaluate by Horner's rule; lowest powers first."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _digamma(x: torch.Tensor) -> Any:
    """The derivative of ``lgamma``: by reflection below a half, by recurrence and a series elsewhere."""
    if not x.is_floating_point():
        return NotImplemented
    turned = x < 0.5
    y = torch.where(turned, 1 - x, x)
    below = torch.zeros_like(y)
    for step in range(_SHIFTS):
        below = below + 1 / (y + step)
    y = y + _SHIFTS
    inverse = 1 / (y * y)
    above = y.log() - 0.5 / y - _polynomial(inverse, (0.0, *_SERIES))
    reflection = math.pi / (math.pi * (x - x.floor())).tan()
    result = above - below - torch.where(turned, reflection, 0.0)
    result = torch.where((x < 0) & (x == x.floor()), math.nan, result)
    return torch.where(x == 0, -torch.copysign(torch.full_like(x, math.inf), x), result)


def _erfinv(y: torch.Tensor) -> Any:
    """The inverse of ``erf``: rational functions, then two of Newton's steps."""
    if not y.is_floating_point():
        return NotImplemented
    square = y * y
    middle = y * _polynomial(square, _MIDDLE[0]) / _polynomial(square, _MIDDLE[1])
    root = (-((1 - y.abs()) / 2).log()).sqrt()
    tail = torch.copysign(_polynomial(root, _TAIL[0]) / _polynomial(root, _TAIL[1]), y)
    x = torch.where(y.abs() <= _MIDDLE_ENDS, middle, tail)
    for _ in range(2):
        x = x - (x.erf() - y) / (2 / math.sqrt(math.pi) * (-x * x).exp())
    return torch.where(y.abs() == 1, torch.copysign(torch.full_like(y, math.inf), y), x)


SPECIAL: dict[str, Callable[..., Any]] = {
    "aten.digamma.default": _digamma,
    "aten.erfinv.default": _erfinv,
}
