"""Rules of calls on rows that a mask selects: what they are of all rows.

A call that treats rows apart is made of all of them, one that joins rows (a sum, an extreme, a product over them) of
all with a neutral value where the mask is false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpu_worker.reference.masked_rows import Masked, Rows, Step, Unfollowed, any_rows, aten, beside, replaced_in
from gpu_worker.reference.row_writes import ROW_WRITES

Tensor = torch.Tensor


# Calls that treat rows apart, with the axis that rows have in the result.


def _probed(step: Step) -> list[int | None]:
    """Return the axis of the rows in each result, found by two numbers of rows that no other axis has."""
    shapes = [[tuple(item.shape) for item in _listed(_made_of(step, count))] for count in _COUNTS]
    axes: list[int | None] = []
    for few, many in zip(*shapes, strict=True):
        places = [place for place, pair in enumerate(zip(few, many, strict=True)) if pair[0] != pair[1]]
        if len(few) != len(many) or len(places) != 1 or (few[places[0]], many[places[0]]) != _COUNTS:
            raise Unfollowed
        axes.append(places[0])
    return axes


_COUNTS = (1009, 2003)


def _made_of(step: Step, count: int) -> Any:
    """Make the call of tensors without data that have so many rows."""

    def empty(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [empty(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        rows = step.rows(value)
        shape = list(value.shape)
        if rows is not None:
            shape[rows.axis] = count
        return torch.empty(shape, dtype=value.dtype, device="meta")

    kwargs = {name: empty(value) for name, value in step.kwargs.items() if name != "device"}
    with _disable_current_modes():
        return step.func(*empty(list(step.args)), **kwargs)


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _apart(step: Step, **named: Any) -> list[Rows]:
    axes = _probed(step)
    return [Rows(value, axis) for value, axis in zip(_listed(step.again(**named)), axes, strict=True)]


def _of_places(*names: str) -> Callable[[Step], list[Rows]]:
    """Return the rule of a call some of whose arguments are indices."""

    def rule(step: Step) -> list[Rows]:
        given = {name: replaced_in(step, step.named[name], Masked.places) for name in names}
        return _apart(step, **given)

    return rule


def _indexed(step: Step) -> list[Rows]:
    if step.of("self") is not None and any_rows(step.rows, step.named["indices"]):
        raise Unfollowed
    return _of_places("indices")(step)


def _gathered(step: Step) -> list[Rows]:
    source, index = step.of("self"), step.of("index")
    if index is None or (source is not None and step.named["dim"] % source.whole.dim() == source.axis):
        raise Unfollowed
    return _of_places("index")(step)


def _viewed(step: Step) -> list[Rows]:
    """View all rows in another shape; rows that become one axis with others stay in order."""
    rows, before = step.first, step.named["self"].shape
    size = list(step.named["size"] if "size" in step.named else step.named["shape"])
    if -1 in size:
        known = math.prod(item for item in size if item != -1)
        size[size.index(-1)] = math.prod(before) // known if known else before[rows.axis]
    ahead, behind, count = math.prod(before[: rows.axis]), math.prod(before[rows.axis + 1 :]), before[rows.axis]
    found = []
    for axis, item in enumerate(size):
        left, right = math.prod(size[:axis]), math.prod(size[axis + 1 :])
        if ahead % max(left, 1) == 0 and behind % max(right, 1) == 0:
            repeats = ahead // max(left, 1), behind // max(right, 1)
            if item == repeats[0] * count * repeats[1]:
                found.append((axis, repeats))
    whole = [pair for pair in found if pair[1] == (1, 1)]
    if len(whole or found) != 1:
        raise Unfollowed
    axis, (left, right) = (whole or found)[0]
    size[axis] = left * rows.whole.shape[rows.axis] * right
    value = rows.whole.reshape(size)
    if (left, right) == (1, 1):
        return [Rows(value, axis)]
    mask = rows.mask.view(1, -1, 1).expand(left, -1, right).reshape(-1)
    return [Rows(value, axis, mask, ("repeated", rows.key, left, right))]


def _expanded(step: Step) -> list[Rows]:
    rows, size = step.first, list(step.named["size"])
    axis = rows.axis + len(size) - rows.whole.dim()
    if size[axis] not in (-1, step.named["self"].shape[rows.axis]):
        raise Unfollowed
    size[axis] = -1
    return [Rows(rows.whole.expand(size), axis)]


def _sliced(step: Step) -> list[Rows]:
    rows = step.first
    if step.named["dim"] % rows.whole.dim() == rows.axis:
        if step.named["start"] or step.named["step"] != 1 or (step.named["end"] or 2**62) < 2**62:
            raise Unfollowed
        return [Rows(aten.alias(rows.whole), rows.axis)]
    return _apart(step)


def _normalised(step: Step) -> list[Rows]:
    rows = step.first
    step.only("input")
    if rows.axis >= rows.whole.dim() - len(step.named["normalized_shape"]):
        raise Unfollowed
    value, *others = _listed(step.again())
    return [Rows(value, rows.axis), *(Rows(item, rows.axis) for item in others)]


def _first_axis(step: Step) -> list[Rows]:
    step.only("input")
    if step.first.axis:
        raise Unfollowed
    return _apart(step)


# Calls that join rows.


def _axes(step: Step) -> list[int]:
    """Return the axes that a call works along; all where none is named."""
    named = step.named.get("dim", step.named.get("dims"))
    rank = step.first.whole.dim()
    if named is None or named == []:
        return list(range(rank))
    return [axis % max(rank, 1) for axis in ([named] if isinstance(named, int) else named)]


def _lowest(kind: torch.dtype) -> float:
    return False if kind is torch.bool else -math.inf if kind.is_floating_point else torch.iinfo(kind).min


def _highest(kind: torch.dtype) -> float:
    return True if kind is torch.bool else math.inf if kind.is_floating_point else torch.iinfo(kind).max


def _neutral(value: Callable[[torch.dtype], float]) -> Callable[[Step], list[Rows]]:
    """Return the rule of a reduction or scan that a number leaves as it is."""

    def rule(step: Step) -> list[Rows]:
        rows = step.first
        made = step.again(lambda item: item.filled(value(item.whole.dtype)))
        if step.name in _ALONG:
            return [Rows(made, rows.axis)]
        if isinstance(made, Tensor):
            return [Rows(_place(step, made) if step.name.startswith("arg") else made, None)]
        return [Rows(made[0], None), Rows(_place(step, made[1]), None)]

    return rule


def _place(step: Step, places: Tensor) -> Tensor:
    """Return places among selected rows for places among all."""
    if step.named.get("dim") is None and step.first.whole.dim() > 1:
        raise Unfollowed
    return (step.first.mask.cumsum(0) - 1).take(places)


def _counted(step: Step, axes: Sequence[int]) -> Tensor:
    """Return how many selected elements there are along some axes."""
    shape = step.first.whole.shape
    return step.first.mask.sum() * math.prod(shape[axis] for axis in axes if axis != step.first.axis)


def _mean(step: Step) -> list[Rows]:
    keep, kind = step.named.get("keepdim", False), step.named.get("dtype") or step.first.whole.dtype
    axes = _axes(step)
    total = step.first.filled(0).sum(axes, keepdim=keep, dtype=kind)
    return [Rows(total / _counted(step, axes).to(kind), None)]


def _spread(step: Step) -> list[Rows]:
    axes, keep = _axes(step), step.named.get("keepdim", False)
    count = _counted(step, axes).to(step.first.whole.dtype)
    middle = step.first.filled(0).sum(axes, keepdim=True) / count
    away = torch.where(beside(step.first.mask, step.first.axis, step.first.whole.dim()), step.first.whole - middle, 0)
    given = step.named.get("correction")
    spread = away.square().sum(axes, keepdim=keep) / (count - (1 if given is None else given)).clamp(min=0)
    return [Rows(spread.sqrt() if step.name == "std" else spread, None)]


def _largest(step: Step) -> list[Rows]:
    largest = step.named.get("largest", True)
    filling = (_lowest if largest else _highest)(step.first.whole.dtype)
    values, places = step.again(lambda item: item.filled(filling))
    return [Rows(values, None), Rows(_place(step, places), None)]


def _sorted(step: Step) -> list[Rows]:
    """Sort selected rows to the front."""
    rows = step.first
    filling = (_lowest if step.named.get("descending") else _highest)(rows.whole.dtype)
    made = step.again(lambda item: item.filled(filling))
    first = torch.arange(len(rows.mask), device=rows.mask.device) < rows.mask.sum()
    key = ("first", rows.key)
    values, places = (None, made) if isinstance(made, Tensor) else made
    places = (rows.mask.cumsum(0) - 1).take(places)
    results = [] if values is None else [Rows(values, rows.axis, first, key)]
    return [*results, Rows(places, rows.axis, first, key)]


def _loss(step: Step) -> list[Rows]:
    reduction = step.named["reduction"]
    if reduction == 0:
        return _apart(step)
    each = step.again(reduction=0)
    rows = replace(step.first, whole=each)
    total = rows.filled(0).sum()
    if reduction == 1:
        others = math.prod(size for axis, size in enumerate(each.shape) if axis != rows.axis)
        total = total / (rows.mask.sum() * others).to(total.dtype)
    return [Rows(total, None)]


def _picked_loss(step: Step) -> list[Rows]:
    """Logarithms of the labelled classes; rows that are not selected are ignored."""
    scores, labels = step.of("self"), step.of("target")
    step.only("self", "target")
    if scores is None or labels is None or scores.axis or labels.axis:
        raise Unfollowed
    value, weight = step.again(target=labels.filled(step.named["ignore_index"]))
    return [Rows(value, 0 if step.named["reduction"] == 0 else None), Rows(weight, None)]


_FACTORS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
}


def _product(step: Step) -> list[Rows]:
    """A matrix product, by rows of the first, by columns of the second, or over the rows of both."""
    first, second = _FACTORS[step.name]
    a, b = step.of(first), step.of(second)
    rank = 3 if step.name in ("bmm", "baddbmm") else 2
    if a is not None and b is not None and (a.axis, b.axis) == (rank - 1, rank - 2):
        return [Rows(step.again(lambda item: item.filled(0)), None)]
    if (a is not None and a.axis == rank - 1) or (b is not None and b.axis == rank - 2):
        raise Unfollowed
    return _apart(step)


def _joined(step: Step) -> list[Rows]:
    """Tensors one after the other; along the rows, all rows of those that are not selected count."""
    axis = step.named["dim"] % max(step.first.whole.dim(), 1)
    if axis != step.first.axis or step.name == "stack":
        return _apart(step)
    parts, masks, keys = [], [], []
    for item in step.named["tensors"]:
        rows = step.rows(item)
        whole = item if rows is None else rows.whole
        size, device = whole.shape[axis], step.first.mask.device
        masks.append(torch.ones(size, dtype=torch.bool, device=device) if rows is None else rows.mask)
        keys.append(size if rows is None else rows.key)
        parts.append(whole)
    return [Rows(torch.cat(parts, axis), axis, torch.cat(masks), ("joined", *keys))]


_ALONG = frozenset({"cumsum", "cumprod", "logcumsumexp", "_softmax", "_log_softmax", "softmax", "log_softmax"})
"""Calls along an axis that keep it."""

_OVER: dict[str, Callable[[Step], list[Rows]]] = {
    **dict.fromkeys(("sum", "nansum", "count_nonzero", "linalg_vector_norm", "norm", "cumsum"), _neutral(lambda _: 0)),
    **dict.fromkeys(("prod", "cumprod", "all"), _neutral(lambda _: 1)),
    "any": _neutral(lambda _: False),
    **dict.fromkeys(
        ("amax", "max", "argmax", "logsumexp", "logcumsumexp", "_softmax", "_log_softmax"), _neutral(_lowest)
    ),
    **dict.fromkeys(("amin", "min", "argmin"), _neutral(_highest)),
    "mean": _mean,
    **dict.fromkeys(("var", "std"), _spread),
    "topk": _largest,
    **dict.fromkeys(("sort", "argsort"), _sorted),
}
"""Rules of calls along the axis of the rows; along another, they treat rows apart."""

_WITH_AXES = frozenset(
    {
        *_OVER, "aminmax", "chunk", "diff", "flip", "glu", "median", "narrow", "select", "softmax", "split",
        "split_with_sizes", "std_mean", "unbind", "unfold", "var_mean", "roll",
    }
)  # fmt: skip

_APART = frozenset(
    {
        "alias", "clone", "contiguous", "detach", "empty_like", "full_like", "lift_fresh", "one_hot", "ones_like",
        "permute", "squeeze", "t", "transpose", "unsqueeze", "zeros_like", "_to_copy", "constant_pad_nd",
        "_prelu_kernel",
    }
)  # fmt: skip
"""Calls that treat rows apart wherever their axis is."""

_OWN: dict[str, Callable[[Step], list[Any]]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _viewed),
    "expand": _expanded,
    "slice": _sliced,
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _normalised),
    "convolution": _first_axis,
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(
        (
            *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
            *("binary_cross_entropy_with_logits", "soft_margin_loss"),
        ),
        _loss,
    ),
    "nll_loss_forward": _picked_loss,
    "index": _indexed,
    "gather": _gathered,
    "index_select": _of_places("index"),
    "embedding": _of_places("indices"),
    **dict.fromkeys(("cat", "stack"), _joined),
    **ROW_WRITES,
}


def follow(step: Step) -> list[Any]:
    """Return the results of a call: :class:`Rows`, or tensors that have none. Raises :class:`Unfollowed`."""
    masks = {rows.key for rows in _all_rows(step, step.named)}
    if len(masks) > 1 and step.name not in ("cat", "stack"):
        raise Unfollowed
    if step.name.endswith("_") and step.of("self") is not None:
        return follow(_out_of_place(step))
    if step.name in _OWN:
        return _OWN[step.name](step)
    if step.name in _WITH_AXES:
        if step.first.axis not in _axes(step):
            return _apart(step)
        if step.name not in _OVER:
            raise Unfollowed
        return _OVER[step.name](step)
    if step.name in _APART or torch.Tag.pointwise in step.func.tags:
        return _apart(step)
    raise Unfollowed


def _out_of_place(step: Step) -> Step:
    """Return the call that gives what a pointwise call in place writes."""
    packet = getattr(aten, step.name[:-1], None)
    func = getattr(packet, step.func._overloadname, None)
    if torch.Tag.pointwise not in step.func.tags or func is None:
        raise Unfollowed
    return replace(step, func=func)


def _all_rows(step: Step, value: Any) -> list[Masked]:
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return [rows for item in items for rows in _all_rows(step, item)]
    rows = step.rows(value)
    return [] if rows is None else [rows]
