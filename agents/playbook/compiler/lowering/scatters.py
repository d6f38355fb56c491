"""Calls that give a copy of a tensor with some elements replaced or added to: scatter, put, index_put, and into views.

Every element looks for what is written to it, so that no two threads write the same place. Where several elements are
written to one place, the last counts, as on one thread of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.lowering.calls import Call, f, read, wide, wrapped
from agents.playbook.compiler.lowering.pointwise import converted, truth
from agents.playbook.compiler.lowering.reductions import broadcast
from agents.playbook.compiler.lowering.views import View, diagonal, narrowed, selected
from agents.playbook.compiler.tensors import Index, Map, Reduce, Scan, Shape, Tensor, mapped
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
    number,
    restricted,
    unravel,
    where,
    within,
)

_NEUTRAL = {"sum": 0.0, "prod": 1.0, "amax": float("-inf"), "amin": float("inf")}
_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}


@dataclass(frozen=True)
class Writes:
    """Values that a call writes to the elements of a tensor."""

    extents: Shape
    """Over which the inner indices run: of all that may be written to one element."""
    hit: Callable[[Index, Index], Term]
    """Condition that what is at an inner index is written to the element at an index."""
    value: Callable[[Index, Index], Term]
    """Value that is written then."""


def combined_with(call: Call, base: Tensor, writes: Writes, name: str, *, own: bool) -> Tensor:
    """Return a tensor reduced with what is written to each element; ``own``: its own value counts as well."""
    if name not in (*_NEUTRAL, "mean"):
        call.refuse(f"it combines by {name!r}; sum, prod, mean, amax and amin are supported")
    kind = wide(base.dtype)
    if base.dtype == BOOL or (name == "mean" and kind not in FLOATS):
        call.refuse(f"it combines {base.dtype} by {name}")
    usual = "sum" if name == "mean" else name
    neutral = const(_neutral(usual, kind), kind)

    def term(index: Index, inner: Index) -> Term:
        return guarded(writes.hit(index, inner), cast(writes.value(index, inner), kind), neutral)

    def one(index: Index, inner: Index) -> Term:
        return cast(writes.hit(index, inner), "int64")

    found = Reduce(base.shape, kind, usual.removeprefix("a"), writes.extents, kind, term)
    count = Reduce(base.shape, "int64", "sum", writes.extents, "int64", one)

    def define(index: Index) -> Term:
        mine, theirs = cast(base.at(index), kind), found.at(index)
        together = {"sum": "add", "prod": "mul", "amax": "fn_max", "amin": "fn_min"}[usual]
        result = f(together, mine, theirs) if own else theirs
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


def replaced(base: Tensor, places: Shape, at: Callable[[Index], Index], writes: Writes) -> Map:
    """Return a tensor with the last of what is written to each element instead of it.

    Of an element's index, ``at`` gives the part that decides what is written, over ``places``; hits are asked of it.
    """
    extents = writes.extents
    strides = tuple(prod(extents[axis + 1 :]) for axis in range(len(extents)))

    def last(index: Index, inner: Index) -> Term:
        return where(writes.hit(index, inner), cast(linear(inner, strides), "int64"), const(-1, "int64"))

    winner = Reduce(places, "int64", "max", extents, "int64", last)

    def define(index: Index) -> Term:
        found = winner.at(at(index))
        on = compare("ge", found, const(0, "int64"))
        inner = unravel(as_index(found, prod(extents)), extents)
        return where(on, restricted(on, cast(writes.value(index, inner), base.register)), base.at(index))

    return mapped(base.shape, base.dtype, define)


def _scatter(call: Call) -> Tensor:
    base, places = call.tensor(0), call.tensor(2)
    name = "" if call.op in ("aten.scatter.src", "aten.scatter.value") else _reduction(call)
    rank = len(base.shape)
    if not rank:
        call.refuse("its tensor has no dimension")
    axis = wrapped(call.whole(1, "dim"), rank)
    source = call.optional(3, "src")
    scalar = const(0 if source is not None else call.real(3, "value"), base.register)

    def place_of(index: Index, inner: Index) -> Index:
        return (*index[:axis], inner[0], *index[axis + 1 :])

    def hit(index: Index, inner: Index) -> Term:
        place = place_of(index, inner)
        sizes = enumerate(zip(place, places.shape, strict=True))
        inside = both(*(within(item, 0, size) for at, (item, size) in sizes if at != axis))
        same = compare("eq", cast(restricted(inside, places.at(place)), "int64"), cast(index[axis], "int64"))
        return both(inside, same)

    def value(index: Index, inner: Index) -> Term:
        return scalar if source is None else source.at(place_of(index, inner))

    writes = Writes((places.shape[axis],), hit, value)
    if name:
        own = call.flag(5, "include_self", default=True) if call.op == "aten.scatter_reduce.two" else True
        return combined_with(call, base, writes, name, own=own)
    return replaced(base, base.shape, lambda index: index, writes)


def _reduction(call: Call) -> str:
    if call.op == "aten.scatter_add.default":
        return "sum"
    given = call.argument(4, "reduce")
    return {"add": "sum", "multiply": "prod"}.get(str(given), str(given))


def _put(call: Call) -> Tensor:
    base, places, source = call.tensor(0), call.tensor(1), call.tensor(2)
    size = base.size
    strides = Tensor(base.shape, base.dtype).strides()

    def hit(index: Index, inner: Index) -> Term:
        own = as_index(places.at(unravel(inner[0], places.shape)), size, wrap=True)
        return compare("eq", own, linear(index, strides))

    def value(_: Index, inner: Index) -> Term:
        return source.at(unravel(inner[0], source.shape))

    writes = Writes((places.size,), hit, value)
    if call.flag(3, "accumulate"):
        return combined_with(call, base, writes, "sum", own=True)
    return replaced(base, base.shape, lambda index: index, writes)


def _index_put(call: Call) -> Tensor:
    base, values = call.tensor(0), call.tensor(2)
    given = call.argument(1, "indices")
    items = given if isinstance(given, list) else []
    used = [axis for axis, item in enumerate(items) if item is not None]
    places = [call.value(str(items[axis]["ref"])) for axis in used]
    if len(places) == 1 and places[0].dtype == BOOL:
        return _masked_put(call, base, places[0], used[0])
    if any(item.dtype in (BOOL, "uint8") for item in places):
        call.refuse("a mask beside other indices selects elements whose number is only known when it runs")
    extents: Shape = ()
    for item in places:
        extents = broadcast(extents, item.shape)
    neighbours = used == list(range(used[0], used[-1] + 1))

    def picked(index: Index) -> Index:
        return tuple(index[axis] for axis in used)

    def hit(own: Index, inner: Index) -> Term:
        pairs = zip(places, own, used, strict=True)
        return both(
            *(compare("eq", as_index(read(item, inner), base.shape[axis], wrap=True), at) for item, at, axis in pairs)
        )

    def value(index: Index, inner: Index) -> Term:
        rest = tuple(item for axis, item in enumerate(index) if axis not in used)
        before = used[0] if neighbours else 0
        return read(values, (*rest[:before], *inner, *rest[before:]))

    if call.flag(3, "accumulate"):
        each = Writes(extents, lambda index, inner: hit(picked(index), inner), value)
        return combined_with(call, base, each, "sum", own=True)
    return replaced(base, tuple(base.shape[axis] for axis in used), picked, Writes(extents, hit, value))


def _masked_put(call: Call, base: Tensor, mask: Tensor, first: int) -> Tensor:
    """Return a tensor with one value, or one for each place beyond the mask's axes, where the mask is true."""
    values, accumulate = call.tensor(2), call.flag(3, "accumulate")
    after = first + len(mask.shape)
    counted = len(base.shape) - after + 1
    if len(values.shape) >= counted and values.shape[-counted] != 1:
        call.refuse(
            "which value goes where is only known when it runs; a single value, masked_fill, where and masked_scatter "
            "are supported"
        )
    kind = base.register

    def define(index: Index) -> Term:
        on = mask.at(index[first:after])
        new = cast(read(values, (*index[:first], number(0), *index[after:])), kind)
        old = base.at(index)
        return where(on, f("add", old, new) if accumulate else restricted(on, new), old)

    return mapped(base.shape, base.dtype, define)


def _masked_scatter(call: Call) -> Tensor:
    base, mask, source = call.tensor(0), call.tensor(1), call.tensor(2)

    def chosen(index: Index) -> Term:
        return cast(truth(read(mask, unravel(index[0], base.shape))), "int64")

    count = Scan((base.size,), "int64", "sum", 0, chosen)
    strides = Tensor(base.shape, base.dtype).strides()

    def define(index: Index) -> Term:
        on = truth(read(mask, index))
        before = f("sub", count.at((linear(index, strides),)), const(1, "int64"))
        place = unravel(as_index(before, source.size), source.shape)
        return where(on, restricted(on, source.at(place)), base.at(index))

    return mapped(base.shape, base.dtype, define)


def _into_view(view: Callable[[Call, Tensor, Tensor], View]) -> Callable[[Call], Tensor]:
    """Return the lowering of a call that gives a copy of a tensor in which a view is overwritten."""

    def lower(call: Call) -> Tensor:
        base, part = call.tensor(0), call.tensor(1)
        return view(call, base, part).written(call, base, part)

    return lower


def _selected(call: Call, base: Tensor, part: Tensor) -> View:  # noqa: ARG001
    axis = wrapped(call.whole(2, "dim"), len(base.shape))
    return selected(base.shape, axis, wrapped(call.whole(3, "index"), base.shape[axis]))


def _sliced(call: Call, base: Tensor, part: Tensor) -> View:
    axis, step = wrapped(call.whole(2, "dim", 0), len(base.shape)), call.whole(5, "step", 1)
    start = 0 if call.argument(3, "start") is None else call.whole(3, "start")
    start = max(0, min(start + base.shape[axis] if start < 0 else start, base.shape[axis]))
    return narrowed(base.shape, axis, start, part.shape[axis], step)


def _on_diagonal(at: int, call: Call, base: Tensor, size: int) -> View:
    rank = len(base.shape)
    first, second = (wrapped(call.whole(at + n, f"dim{n}", n - 1), rank) for n in (1, 2))
    return diagonal(base.shape, call.whole(at, "offset", 0), first, second, size)


SCATTERS: dict[str, Callable[[Call], Tensor]] = {
    **{f"aten.scatter.{kind}": _scatter for kind in ("src", "value", "reduce", "value_reduce")},
    "aten.scatter_add.default": _scatter,
    "aten.scatter_reduce.two": _scatter,
    "aten.put.default": _put,
    "aten.index_put.default": _index_put,
    "aten._unsafe_index_put.default": _index_put,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.diagonal_scatter.default": _into_view(lambda call, base, part: _on_diagonal(2, call, base, part.shape[-1])),
    "aten.diagonal_copy.default": lambda call: _on_diagonal(1, call, call.tensor(0), call.shape[-1]).of(call.tensor(0)),
    "aten.select_scatter.default": _into_view(_selected),
    "aten.slice_scatter.default": _into_view(_sliced),
}
"""Calls that write into a copy of their first argument, and the copy of a diagonal."""
