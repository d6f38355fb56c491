"""Rounds values that lie next to a tie to either of their neighbours, in a forward pass in float64.

A quantiser rounds what it has calculated to a whole number. Two honest calculations in float32 may lie on either side
of the boundary between two whole numbers; everywhere else they round to the same one.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_worker.reference.watching import ForwardWatch

SHARE = 2.0**-18
"""Error of a value before it is rounded, as a share of its magnitude or of the tensor's root mean square: 64 units of
float32, the tightest tolerance of any output (:mod:`gpu_worker.judge.tolerance`)."""

MOST = 0.25
"""Of a step, the most that any value is moved by: none comes further than to the next whole number."""

CHANCE = 2.0**-13
"""Share of the values up to which they lie on a boundary by chance, as the half of a row's largest one may."""

_ROUNDING = frozenset({"ceil", "ceil_", "floor", "floor_", "round", "round_", "trunc", "trunc_"})


class NearTies(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Moves what is rounded to whole numbers by its error in float32 first: all of it up, or all of it down.

    Zeros stay, and so does what lies on a boundary, where there is more of it than by chance: there, calculations are
    exact in float32 too.
    """

    def __init__(self, *, up: bool) -> None:
        super().__init__()
        self._sign = 1.0 if up else -1.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, _, overload = str(func).removeprefix("aten.").partition(".")
        dtype = kwargs.get("dtype")
        whole = name == "_to_copy" and dtype is not None and not dtype.is_floating_point and dtype is not torch.bool
        if not (whole or (name in _ROUNDING and overload == "default")) or not args[0].is_floating_point():
            return func(*args, **kwargs)
        moved = self._moved(args[0], 0.5 if name in ("round", "round_") else 0.0)
        if name.endswith("_") and not whole:
            return args[0].copy_(func(moved))
        return func(moved, *args[1:], **kwargs)

    def _moved(self, values: torch.Tensor, boundary: float) -> torch.Tensor:
        usual = values.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
        by = values.abs().clamp_min(usual).mul(SHARE).clamp(max=MOST)
        exact = values - boundary == (values - boundary).round()
        if int(exact.sum()) <= CHANCE * exact.numel():
            exact = values == 0
        return torch.where(exact, values, values + self._sign * by)
