"""Writes by index tensors into a copy of a tensor: elements replaced by the last write, or combined with all of them.

Where few writes may meet an element, it looks through all of them. Otherwise each write goes to its own place. What is
brought together there are whole numbers, so that no result depends on the order of the writes: the place of a write in
their order, or a value in fixed point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import Any

from agents.playbook.compiler.lowering.calls import Call, f, wide
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.tensors import Index, Map, Reduce, Scatter, Shape, Tensor, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    FLOATS,
    Term,
    as_index,
    both,
    cast,
    compare,
    const,
    guarded,
    linear,
    make,
    restricted,
    unravel,
    where,
    within,
)

LOOKED_THROUGH = 64
"""Writes up to which each element looks through them; more of them go to their places themselves."""
FEW = 8
"""Places up to which elements look through any number of writes; more where neighbours share what they find."""
_TOGETHER = {"sum": "add", "prod": "mul", "amax": "fn_max", "amin": "fn_min"}
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "amax": float("-inf"), "amin": float("inf")}
_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}
_FIXED_BITS = 62
"""Of a sum in fixed point, with room for its sign."""
_LEAST_EXPONENT = -880
"""Of a sum in fixed point: smaller values lose digits, and the scale stays a number."""
_ORDERED_INFINITY = 0x7FF0000000000000
"""Infinity as a whole number of the order of float64."""


@dataclass(frozen=True)
class Writes:
    """Values that a call writes to the elements of a tensor.

    Index tensors say the place on some axes; on the others, which are called the rest, a write keeps its own.
    """

    axes: tuple[int, ...]
    extents: Shape
    """Over which the inner indices run: of all that may be written to one element."""
    place: Callable[[Index, Index], Index]
    """Place on the axes, by the index on the rest and the inner index."""
    value: Callable[[Index, Index], Term]
    """Value that is written to an element, by its index and the inner index."""
    own: Shape | None = None
    """Sizes on the rest within which there are writes, where places differ on it; None where they do not."""

    def hit(self, index: Index, inner: Index) -> Term:
        """Return the condition that what is at an inner index is written to the element at an index."""
        rest = self.rest(index)
        inside = both(*(within(item, 0, size) for item, size in zip(rest, self.own or (), strict=False)))
        places = zip(self.place(rest, inner), self.axes, strict=True)
        return both(inside, *(compare("eq", restricted(inside, place), index[axis]) for place, axis in places))

    def looked_through(self, shape: Shape) -> bool:
        """Return whether it is less work for each element of a tensor to look through all writes."""
        places = prod(shape[axis] for axis in self.axes)
        neighbours = prod(self.rest(shape)) if self.own is None else 1
        return prod(self.extents) <= LOOKED_THROUGH or places <= FEW * min(neighbours, FEW)

    def rest(self, index: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the part of an index or a shape on the axes that no index tensor is about."""
        return tuple(item for axis, item in enumerate(index) if axis not in self.axes)


def combined_with(call: Call, base: Tensor, writes: Writes, name: str, *, own: bool) -> Tensor:
    """Return a tensor reduced with what is written to each element; ``own``: its own value counts as well."""
    if name not in (*_NEUTRAL, "mean"):
        call.refuse(f"it combines by {name!r}; sum, prod, mean, amax and amin are supported")
    kind = wide(base.dtype)
    if base.dtype == BOOL or (name == "mean" and kind not in FLOATS):
        call.refuse(f"it combines {base.dtype} by {name}")
    usual = "sum" if name == "mean" else name
    found = _together(base.shape, writes, usual, kind)
    counted = Writes(writes.axes, writes.extents, writes.place, lambda *_: const(1, "int64"), writes.own)
    count = _together(base.shape, counted, "sum", "int64")

    def define(index: Index) -> Term:
        mine, theirs = cast(base.at(index), kind), found.at(index)
        result = f(_TOGETHER[usual], mine, theirs) if own else theirs
        if name == "mean":
            written = cast(count.at(index), kind)
            result = f("div", result, f("add", written, const(1, kind)) if own else written)
        if own and name != "mean":
            return result
        return where(compare("gt", count.at(index), const(0, "int64")), result, mine)

    return converted(mapped(base.shape, kind, define), base.dtype)


def _neutral(name: str, kind: str) -> float:
    if kind in FLOATS or name in ("sum", "prod"):
        return _NEUTRAL[name]
    if kind == "uint8":
        return 0 if name == "amax" else 255
    largest = (1 << _BITS[kind] - 1) - 1
    return -largest - 1 if name == "amax" else largest


def _together(shape: Shape, writes: Writes, name: str, kind: str) -> Tensor:
    """Return what all writes to each element come to, without what it was; the neutral element where there is none."""
    usual, neutral = name.removeprefix("a"), _neutral(name, kind)
    if usual == "prod" or writes.looked_through(shape):
        return _looked_up(shape, writes, usual, const(neutral, kind))
    items = _Items(shape, writes)
    return _floats_sent(items, usual, kind) if kind in FLOATS else _sent(items, usual, kind, int(neutral))


def _looked_up(shape: Shape, writes: Writes, kind: str, neutral: Term) -> Tensor:
    """Return what writes come to where each element looks through all of them."""

    def term(index: Index, inner: Index) -> Term:
        return guarded(writes.hit(index, inner), cast(writes.value(index, inner), neutral.dtype), neutral)

    return Reduce(shape, neutral.dtype, kind, writes.extents, neutral.dtype, term)


@dataclass(frozen=True)
class _Items:
    """All writes of a call, in one index space that lies like the values."""

    over: Shape
    """Shape of the tensor that is written to."""
    writes: Writes

    @property
    def _before(self) -> int:
        """Axes of the rest that come before the inner ones."""
        axes = self.writes.axes
        return axes[0] if axes and axes == tuple(range(axes[0], axes[-1] + 1)) else 0

    @property
    def shape(self) -> Shape:
        rest = self.writes.rest(self.over) if self.writes.own is None else self.writes.own
        return (*rest[: self._before], *self.writes.extents, *rest[self._before :])

    def inner(self, item: Index) -> Index:
        return item[self._before : self._before + len(self.writes.extents)]

    def target(self, item: Index) -> Index:
        """Return the index of the element that an item is written to."""
        rest = [*item[: self._before], *item[self._before + len(self.writes.extents) :]]
        found = dict(zip(self.writes.axes, self.writes.place(tuple(rest), self.inner(item)), strict=True))
        return tuple(found[axis] if axis in found else rest.pop(0) for axis in range(len(self.over)))

    def value(self, item: Index) -> Term:
        return self.writes.value(self.target(item), self.inner(item))

    def sent(self, kind: str, first: int, define: Callable[[Index], Term]) -> Scatter:
        return Scatter(self.over, "int64", kind, self.shape, first, self.target, define)


def _sent(items: _Items, usual: str, kind: str, first: int) -> Tensor:
    """Return what writes of whole numbers come to where each goes to its place."""
    whole = items.sent(usual, first, lambda item: cast(cast(items.value(item), kind), "int64"))
    return whole if kind == "int64" else Map(items.over, kind, lambda index: cast(whole.at(index), kind))


def _floats_sent(items: _Items, usual: str, kind: str) -> Tensor:
    """Return what writes of floats come to where each goes to its place."""

    def exact(item: Index) -> Term:
        return cast(cast(items.value(item), kind), "float64")

    if usual == "sum":
        return _summed(items, kind, exact)
    first = -_ORDERED_INFINITY - 1 if usual == "max" else _ORDERED_INFINITY
    extreme = items.sent(usual, first, lambda item: make(f"fn_ordered_{usual}", "int64", exact(item)))
    return Map(items.over, kind, lambda index: cast(make("fn_unordered", "float64", extreme.at(index)), kind))


def _summed(items: _Items, kind: str, exact: Callable[[Index], Term]) -> Tensor:
    """Return sums of floats in fixed point, whose unit follows from the largest value at each place.

    So they are the same in any order, and more exact than sums of float32; those of float64 have a second word.
    """
    exponents = items.sent("max", _LEAST_EXPONENT, lambda item: make("fn_exponent", "int64", exact(item)))
    bits = _FIXED_BITS - (prod(items.writes.extents) - 1).bit_length()
    words = [("fn_fixed", bits), ("fn_rest", 2 * bits)][: 2 if kind == "float64" else 1]

    def word(name: str) -> Scatter:
        def define(item: Index) -> Term:
            exponent = exponents.at(items.target(item))
            return make(name, "int64", exact(item), exponent, const(bits, "int64"))

        return items.sent("sum", 0, define)

    parts = [(word(name), point) for name, point in words]

    def total(index: Index) -> Term:
        exponent = exponents.at(index)
        scaled = ((part.at(index), exponent, const(point, "int64")) for part, point in parts)
        return cast(reduce(partial(f, "add"), (make("fn_unfix", "float64", *item) for item in scaled)), kind)

    return Map(items.over, kind, total)


def replaced(base: Tensor, writes: Writes) -> Map:
    """Return a tensor with the last of what is written to each element instead of it."""
    extents = writes.extents
    winner = _last(base.shape, writes)

    def define(index: Index) -> Term:
        found = winner.at(index if writes.own is not None else [index[axis] for axis in writes.axes])
        on = compare("ge", found, const(0, "int64"))
        inner = unravel(as_index(found, prod(extents)), extents)
        return where(on, restricted(on, cast(writes.value(index, inner), base.register)), base.at(index))

    return mapped(base.shape, base.dtype, define)


def _last(shape: Shape, writes: Writes) -> Tensor:
    """Return the position of the last write to each element, -1 without one; over the writes' axes where these do."""
    extents = writes.extents
    strides = tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))

    def position(_: Index, inner: Index) -> Term:
        return cast(linear(inner, strides), "int64")

    axes = writes.axes if writes.own is not None else tuple(range(len(writes.axes)))
    places = shape if writes.own is not None else tuple(shape[axis] for axis in writes.axes)
    positions = Writes(axes, extents, writes.place, position, writes.own)
    if writes.looked_through(shape):
        return _looked_up(places, positions, "max", const(-1, "int64"))
    return _sent(_Items(places, positions), "max", "int64", -1)
