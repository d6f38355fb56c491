"""Calls that write rows of a tensor at places that another tensor names, from ``index_copy`` to ``index_reduce``."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import KEYWORD, Call, f, like, read, wrapped
from agents.playbook.compiler.lowering.scatters import Writes, combined_with
from agents.playbook.compiler.tensors import Index, Reduce, Tensor, mapped
from agents.playbook.compiler.terms import Term, as_index, cast, compare, const, guarded, restricted, where


def _indexed(make: Callable[[Call, int], Tensor]) -> Callable[[Call], Tensor]:
    def lower(call: Call) -> Tensor:
        base, places = call.tensor(0), call.tensor(2)
        if not base.shape or len(places.shape) != 1:
            call.refuse("its index is not of one dimension")
        return make(call, wrapped(call.whole(1, "dim"), len(base.shape)))

    return lower


def _at(index: Index, axis: int, place: Term) -> Index:
    return (*index[:axis], place, *index[axis + 1 :])


def _named(places: Tensor, place: Term, item: Term) -> Term:
    """Return the condition that the element of the index tensor names an index."""
    return compare("eq", cast(places.at((place,)), "int64"), cast(item, "int64"))


def _index_add(call: Call, axis: int) -> Tensor:
    base, places, source = call.tensor(0), call.tensor(2), call.tensor(3)
    kind, factor = base.register, call.real(KEYWORD, "alpha", 1)

    def amount(index: Index, inner: Index) -> Term:
        value = cast(source.at(_at(index, axis, inner[0])), kind)
        value = value if factor == 1 else f("mul", value, like(factor, value))
        return guarded(_named(places, inner[0], index[axis]), value, const(0, kind))

    total = Reduce(base.shape, base.dtype, "sum", places.shape, kind, amount)
    return mapped(base.shape, base.dtype, lambda index: f("add", base.at(index), total.at(index)))


def _index_copy(call: Call, axis: int) -> Tensor:
    base, places, source = call.tensor(0), call.tensor(2), call.tensor(3)
    kind, size = base.register, places.shape[0]

    def last(index: Index, inner: Index) -> Term:
        return where(_named(places, inner[0], index[0]), cast(inner[0], "int64"), const(-1, "int64"))

    winner = Reduce((base.shape[axis],), "int64", "max", (size,), "int64", last)

    def define(index: Index) -> Term:
        found = winner.at((index[axis],))
        on = compare("ge", found, const(0, "int64"))
        value = cast(source.at(_at(index, axis, as_index(found, size))), kind)
        return where(on, restricted(on, value), base.at(index))

    return mapped(base.shape, base.dtype, define)


def _index_fill(call: Call, axis: int) -> Tensor:
    base, places = call.tensor(0), call.tensor(2)
    kind, size = base.register, base.shape[axis]
    given = call.optional(3, "value")

    def named(index: Index, inner: Index) -> Term:
        return cast(compare("eq", as_index(places.at(inner), size, wrap=True), index[0]), "int32")

    found = Reduce((size,), "int32", "max", places.shape, "int32", named)

    def define(index: Index) -> Term:
        value = const(call.real(3, "value"), kind) if given is None else cast(read(given, index), kind)
        return where(compare("gt", found.at((index[axis],)), const(0, "int32")), value, base.at(index))

    return mapped(base.shape, base.dtype, define)


def _index_reduce(call: Call, axis: int) -> Tensor:
    base, places, source = call.tensor(0), call.tensor(2), call.tensor(3)
    given = str(call.argument(4, "reduce"))

    def hit(index: Index, inner: Index) -> Term:
        return _named(places, inner[0], index[axis])

    def value(index: Index, inner: Index) -> Term:
        return source.at(_at(index, axis, inner[0]))

    own = call.flag(KEYWORD, "include_self", default=True)
    return combined_with(call, base, Writes(places.shape, hit, value), given, own=own)


INDEXED: dict[str, Callable[[Call], Tensor]] = {
    "aten.index_add.default": _indexed(_index_add),
    "aten.index_copy.default": _indexed(_index_copy),
    "aten.index_fill.int_Scalar": _indexed(_index_fill),
    "aten.index_fill.int_Tensor": _indexed(_index_fill),
    "aten.index_reduce.default": _indexed(_index_reduce),
}
"""Calls that write where an index tensor says."""
