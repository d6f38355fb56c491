"""Reductions seen as convolutions of images: axes of images, channels, filters, rows and columns, and their taps."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.products import bare, product_of
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, affine, conjuncts, is_const


@dataclass(frozen=True)
class Axis:
    """An image's axis: input ``output + tap + first``, of ``taps``; where these are flipped the last comes first."""

    result: int
    outputs: int
    size: int
    taps: int
    first: int
    flipped: bool


@dataclass(frozen=True)
class Convolution:
    """A sum over channels, rows and columns of taps, of steps of one; a transposed one has its taps flipped."""

    group: Group
    image: Term
    """Load of an element of the image."""
    weight: Term
    rows: Axis
    columns: Axis
    batch: int
    """Axis of images in the result."""
    filters: int
    """Axis of filters in the result."""
    channels: int


def convolution_of(group: Group) -> Convolution | None:
    """Return a group as a convolution of images in float32 with stride and dilation one; None where it is none."""
    product, source = product_of(group), group.source
    if product is None or not isinstance(source, Reduce) or len(source.extents) != 3 or len(group.shape) != 4:
        return None
    load, weight = bare(product.first), bare(product.second)
    if load is None or weight is None or len(weight.args) > len(weight.data.shape):
        return None
    data = load.data
    if len(data.shape) != 4 or data.dtype != "float32" or len(product.columns) != 1:
        return None
    image, channel, *places = load.args[:4]
    if channel is not group.inner[0] or source.extents[0] != data.shape[1]:
        return None
    axes = [_axis(group, source, place, data.shape[2 + at], 1 + at) for at, place in enumerate(places)]
    rows, columns = axes
    if rows is None or columns is None or not _only_inside(load, data.shape):
        return None
    own = {rows.result, columns.result, product.columns[0]}
    batch = next((axis for axis in range(4) if axis not in own), None)
    if batch is None or len(own) != 3 or image is not group.index[batch]:
        return None
    others = [index for axis, index in enumerate(group.index) if axis != product.columns[0] and index.op == "index"]
    if any(depends(product.second, index) for index in others):
        return None
    return Convolution(group, load, product.second, rows, columns, batch, product.columns[0], source.extents[0])


def _axis(group: Group, source: Reduce, place: Term, size: int, inner: int) -> Axis | None:
    found = affine(place)
    tap = group.inner[inner]
    results = [axis for axis, index in enumerate(group.index) if index.op == "index" and index in found.factors]
    if len(results) != 1 or found.factors[group.index[results[0]]] != 1:
        return None
    factor = found.factors.get(tap, 1)
    if len(found.factors) != 1 + (tap.op == "index") or factor not in (1, -1):
        return None
    taps = source.extents[inner]
    first = found.constant - (taps - 1 if factor == -1 else 0)
    return Axis(results[0], group.shape[results[0]], size, taps, first, factor == -1)


def _only_inside(load: Term, shape: tuple[int, ...]) -> bool:
    """Return whether a load is guarded by nothing but the bounds of its image."""
    bounds = {(load.args[axis], "ge", 0) for axis in (2, 3)}
    bounds |= {(load.args[axis], "lt", shape[axis]) for axis in (2, 3)}
    for guard in load.args[4:]:
        for condition in conjuncts(guard):
            if condition.op not in ("ge", "lt") or not is_const(condition.args[1]):
                return False
            if (condition.args[0], condition.op, condition.args[1].data) not in bounds:
                return False
    return True
