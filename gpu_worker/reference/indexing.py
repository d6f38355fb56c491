"""Indexing by a tensor of one whole number, which Python reads out of the tensor: the graph would keep that number."""

from __future__ import annotations

from typing import Any

import torch

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def places_in(index: Any, rank: int) -> tuple[tuple[Any, ...], list[tuple[int, torch.Tensor]]] | None:
    """Return an index without its tensors of one number, and the axes of what it gives that these are for.

    None where there are no such tensors, or where there are others or lists beside them.
    """
    items = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_place, items)):
        return None
    if not all(item is None or item is Ellipsis or isinstance(item, int | slice) or _is_place(item) for item in items):
        return None
    used = sum(item is not None and item is not Ellipsis for item in items)
    axis, rest, places = 0, list[Any](), list[tuple[int, torch.Tensor]]()
    for item in items:
        if _is_place(item):
            places.append((axis, item))
        rest.append(slice(None) if _is_place(item) else item)
        axis += rank - used if item is Ellipsis else 0 if isinstance(item, int) and not isinstance(item, bool) else 1
    return tuple(rest), places


def _is_place(item: Any) -> bool:
    return (
        isinstance(item, torch.Tensor) and not item.dim() and not item.is_floating_point() and item.dtype != torch.bool
    )


def _counted(place: torch.Tensor, size: int) -> torch.Tensor:
    """Return a place as an index of one dimension, counted from the beginning."""
    return torch.where(place < 0, place + size, place).long().reshape(1)


def taken(values: torch.Tensor, index: Any) -> Any:
    """Return ``values[index]``; NotImplemented where the index has no tensor of one number."""
    found = places_in(index, values.dim())
    if found is None:
        return NotImplemented
    result = values[found[0]]
    for axis, place in reversed(found[1]):
        result = result.index_select(axis, _counted(place, result.shape[axis])).squeeze(axis)
    return result


def put(values: torch.Tensor, index: Any, new: Any) -> Any:
    """Make ``values[index] = new``; NotImplemented where the index has not exactly one tensor of one number."""
    found = places_in(index, values.dim())
    if found is None or len(found[1]) != 1:
        return NotImplemented
    ((axis, place),) = found[1]
    target = values[found[0]]
    shape = [*target.shape[:axis], 1, *target.shape[axis + 1 :]]
    if not isinstance(new, torch.Tensor):
        new = torch.full((), new, dtype=values.dtype, device=values.device)
    if new.dim() > target.dim() - 1 - axis:
        new = new.unsqueeze(new.dim() - (target.dim() - 1 - axis))
    target.index_copy_(axis, _counted(place, target.shape[axis]), new.to(values.dtype).expand(shape))
    return None
