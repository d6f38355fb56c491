"""Copies of tensors that keep strides, and the form that exact values are kept in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

Change = Callable[[Sequence[torch.Tensor]], None]
"""Changes tensors in place."""

EXACT_ELEMENTS = 2**22
"""Exact results with more elements are kept in float32, rounded from float64: by 6e-8, far below any tolerance."""


def dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their storage range once, in whatever order."""
    return _span(tensor) == tensor.numel() and 0 not in tensor.stride()


def copy_of(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a private copy with the same strides, of another dtype if one is given."""
    if dense(tensor):
        return tensor.to(dtype or tensor.dtype, copy=True)
    return flat(tensor).to(dtype or tensor.dtype, copy=True).as_strided(tensor.shape, tensor.stride())


def changed_copies(
    tensors: Sequence[torch.Tensor], change: Change | None, dtypes: Mapping[torch.dtype, torch.dtype] | None = None
) -> list[torch.Tensor]:
    """Return private copies, in other dtypes where any are named, after ``change`` was made to them."""
    copies = [copy_of(tensor, (dtypes or {}).get(tensor.dtype)) for tensor in tensors]
    if change is not None:
        change(copies)
    return copies


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor's storage range, gaps included, in one dimension."""
    return tensor.as_strided((_span(tensor),), (1,), tensor.storage_offset())


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in float64; any other as it is."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def shortened(exact: torch.Tensor) -> torch.Tensor:
    """Return exact values in the form that they are kept in: float32 where there are many."""
    if exact.dtype is torch.float64 and exact.numel() > EXACT_ELEMENTS:
        return exact.float()
    return exact


def alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have the same values, NaN where the other has it."""
    if torch.equal(first, second):
        return True
    return bool(((first == second) | (first.isnan() & second.isnan())).all())
