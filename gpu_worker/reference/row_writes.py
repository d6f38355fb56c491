"""Rules of calls that write rows which a mask selects into another tensor: nothing is written of the other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpu_worker.reference.masked_rows import Masked, Step, Unfollowed, beside, replaced_in

Tensor = torch.Tensor


def _added(step: Step) -> list[Any]:
    """Rows that are added at places; those that are not selected add nothing to the first place."""
    named = {"index": step.of("index"), "source": step.of("source"), "src": step.of("src")}
    if step.of("self") is not None or named["index"] is None or (named["source"] or named["src"]) is None:
        raise Unfollowed
    if step.named.get("reduce", "sum") != "sum":
        raise Unfollowed
    return [step.again(lambda item: item.filled(0))]


def _put(step: Step) -> list[Any]:
    """Rows that are put at places, or where the mask that selected them is true."""
    base, values, indices = step.named["self"], step.named["values"], list(step.named["indices"])
    rows, add = step.rows(values), step.named["accumulate"]
    if step.rows(base) is not None:
        raise Unfollowed
    places = [axis for axis, item in enumerate(indices) if item is not None]
    new = values if rows is None else rows.whole
    if rows is not None and len(places) == 1 and step.rows(indices[places[0]]) is None:
        return [_put_under_mask(step, base, rows, places[0], indices[places[0]])]
    chosen = [item for item in (step.rows(indices[axis]) for axis in places) if item is not None]
    if not chosen or any(item.axis or item.whole.dim() > 1 for item in chosen):
        raise Unfollowed
    whole = [replaced_in(step, item, Masked.places) for item in indices]
    if add:
        on = beside(chosen[0].mask, 0, max(base.dim() - len(places) + 1, 1))
        return [step.func(base, whole, torch.where(on, new, 0), add)]
    axis = places[0]
    size = base.shape[axis]
    at = whole[axis]
    whole[axis] = torch.where(chosen[0].mask, torch.where(at < 0, at + size, at), size)
    longer = torch.cat([base, base.narrow(axis, 0, 1)], axis)
    return [_finished(step, base, longer.index_put(whole, new).narrow(axis, 0, size))]


def _put_under_mask(step: Step, base: Tensor, rows: Masked, axis: int, mask: Tensor) -> Tensor:
    if mask.dtype not in (torch.bool, torch.uint8) or rows.key != step.key_of(mask) or rows.axis != axis:
        raise Unfollowed
    shape = rows.whole.shape
    whole = rows.whole.reshape(*shape[:axis], *mask.shape, *shape[axis + 1 :]).to(base.dtype)
    on = (mask != 0).reshape(*mask.shape, *(1 for _ in range(base.dim() - axis - mask.dim())))
    old = base if not step.named["accumulate"] else 0
    new = torch.where(on, whole, old)
    return _finished(step, base, base + new if step.named["accumulate"] else new)


def _finished(step: Step, base: Tensor, new: Tensor) -> Tensor:
    """Return the new values, written into the tensor where the call does."""
    return base.copy_(new) if step.name.endswith("_") else new


ROW_WRITES: dict[str, Callable[[Step], list[Any]]] = {
    **dict.fromkeys(
        ("index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), _added
    ),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"), _put),
}
"""Rules by the names of calls."""
