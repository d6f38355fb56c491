"""Errors of a large output by one kernel, where PyTorch's operators take a pass over the GPU's memory each.

Compiled by PyTorch itself at the first call: ``torch.cuda.jiterator``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import cast

import torch

WORTHWHILE = 2**22
"""Elements from which on fewer passes are worth a kernel of its own."""

_SOURCE = """
template <typename T> void errors(T wanted, T actual, T centre, T spread, T& error, T& share) {
    const T difference = actual - wanted, distance = wanted - centre;
    const T unit = distance < T(0) ? -distance : distance;
    error = difference < T(0) ? -difference : difference;
    share = error / (unit < spread ? spread : unit);
}
"""
"""A NaN fails each comparison, and stays one."""


def errors_and_shares(
    wanted: torch.Tensor, actual: torch.Tensor, centre: float, spread: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return absolute errors, and their ratio to the distance from ``centre`` where that is above ``spread``."""
    return cast("tuple[torch.Tensor, torch.Tensor]", _kernel()(wanted, actual, centre=centre, spread=spread))


@cache
def _kernel() -> Callable[..., object]:
    create = torch.cuda.jiterator._create_multi_output_jit_fn  # the only name that there is
    return cast("Callable[..., object]", create(_SOURCE, 2, centre=0.0, spread=1.0))
