"""Calls that give a copy of a tensor with some elements replaced or added to: scatter, put, index_put, and into views.

Where several elements are written to one place, the last counts, as on one thread of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import Call, f, read, wrapped
from agents.playbook.compiler.lowering.pointwise import truth
from agents.playbook.compiler.lowering.reductions import broadcast
from agents.playbook.compiler.lowering.views import View, diagonal, narrowed, selected
from agents.playbook.compiler.lowering.writes import Writes, combined_with, replaced
from agents.playbook.compiler.tensors import Index, Scan, Shape, Tensor, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    Term,
    as_index,
    cast,
    const,
    linear,
    number,
    restricted,
    unravel,
    where,
)


def _scatter(call: Call) -> Tensor:
    base, places = call.tensor(0), call.tensor(2)
    name = "" if call.op in ("aten.scatter.src", "aten.scatter.value") else _reduction(call)
    rank = len(base.shape)
    if not rank:
        call.refuse("its tensor has no dimension")
    axis = wrapped(call.whole(1, "dim"), rank)
    source = call.optional(3, "src")
    scalar = const(0 if source is not None else call.real(3, "value"), base.register)

    def place(rest: Index, inner: Index) -> Index:
        return (as_index(places.at((*rest[:axis], *inner, *rest[axis:])), base.shape[axis]),)

    def value(index: Index, inner: Index) -> Term:
        return scalar if source is None else source.at((*index[:axis], *inner, *index[axis + 1 :]))

    own = (*places.shape[:axis], *places.shape[axis + 1 :])
    writes = Writes((axis,), (places.shape[axis],), place, value, own)
    if name:
        include = call.flag(5, "include_self", default=True) if call.op == "aten.scatter_reduce.two" else True
        return combined_with(call, base, writes, name, own=include)
    return replaced(base, writes)


def _reduction(call: Call) -> str:
    if call.op == "aten.scatter_add.default":
        return "sum"
    given = call.argument(4, "reduce")
    return {"add": "sum", "multiply": "prod"}.get(str(given), str(given))


def _put(call: Call) -> Tensor:
    base, places, source = call.tensor(0), call.tensor(1), call.tensor(2)

    def place(_: Index, inner: Index) -> Index:
        return unravel(as_index(places.at(unravel(inner[0], places.shape)), base.size, wrap=True), base.shape)

    def value(_: Index, inner: Index) -> Term:
        return source.at(unravel(inner[0], source.shape))

    writes = Writes(tuple(range(len(base.shape))), (places.size,), place, value)
    if call.flag(3, "accumulate"):
        return combined_with(call, base, writes, "sum", own=True)
    return replaced(base, writes)


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

    def place(_: Index, inner: Index) -> Index:
        pairs = zip(places, used, strict=True)
        return tuple(as_index(read(item, inner), base.shape[axis], wrap=True) for item, axis in pairs)

    def value(index: Index, inner: Index) -> Term:
        rest = tuple(item for axis, item in enumerate(index) if axis not in used)
        before = used[0] if neighbours else 0
        return read(values, (*rest[:before], *inner, *rest[before:]))

    writes = Writes(tuple(used), extents, place, value)
    if call.flag(3, "accumulate"):
        return combined_with(call, base, writes, "sum", own=True)
    return replaced(base, writes)


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
