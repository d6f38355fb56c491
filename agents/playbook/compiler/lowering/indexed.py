"""Calls that write rows of a tensor at places that another tensor names, from ``index_copy`` to ``index_reduce``."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import KEYWORD, Call, f, like, read, wrapped
from agents.playbook.compiler.lowering.writes import Writes, combined_with, replaced
from agents.playbook.compiler.tensors import Index, Tensor
from agents.playbook.compiler.terms import Term, as_index, cast, const


def _indexed(make: Callable[[Call, int], Tensor]) -> Callable[[Call], Tensor]:
    def lower(call: Call) -> Tensor:
        base, places = call.tensor(0), call.tensor(2)
        if not base.shape or len(places.shape) != 1:
            call.refuse("its index is not of one dimension")
        return make(call, wrapped(call.whole(1, "dim"), len(base.shape)))

    return lower


def _writes(call: Call, axis: int, value: Callable[[Index, Index], Term], *, wrap: bool = False) -> Writes:
    """Return writes of rows, whose indices count from the end where they are negative if ``wrap``."""
    size, places = call.tensor(0).shape[axis], call.tensor(2)
    return Writes((axis,), places.shape, lambda _, inner: (as_index(places.at(inner), size, wrap=wrap),), value)


def _row(call: Call, axis: int) -> Callable[[Index, Index], Term]:
    """Return the values of the call's source, by an element's index and the place in the index tensor."""
    source = call.tensor(3)
    return lambda index, inner: source.at((*index[:axis], *inner, *index[axis + 1 :]))


def _index_add(call: Call, axis: int) -> Tensor:
    base, row, factor = call.tensor(0), _row(call, axis), call.real(KEYWORD, "alpha", 1)

    def amount(index: Index, inner: Index) -> Term:
        value = cast(row(index, inner), base.register)
        return value if factor == 1 else f("mul", value, like(factor, value))

    return combined_with(call, base, _writes(call, axis, amount), "sum", own=True)


def _index_copy(call: Call, axis: int) -> Tensor:
    return replaced(call.tensor(0), _writes(call, axis, _row(call, axis)))


def _index_fill(call: Call, axis: int) -> Tensor:
    base, given = call.tensor(0), call.optional(3, "value")

    def value(index: Index, _: Index) -> Term:
        return const(call.real(3, "value"), base.register) if given is None else read(given, index)

    return replaced(base, _writes(call, axis, value, wrap=True))


def _index_reduce(call: Call, axis: int) -> Tensor:
    own = call.flag(KEYWORD, "include_self", default=True)
    writes = _writes(call, axis, _row(call, axis))
    return combined_with(call, call.tensor(0), writes, str(call.argument(4, "reduce")), own=own)


INDEXED: dict[str, Callable[[Call], Tensor]] = {
    "aten.index_add.default": _indexed(_index_add),
    "aten.index_copy.default": _indexed(_index_copy),
    "aten.index_fill.int_Scalar": _indexed(_index_fill),
    "aten.index_fill.int_Tensor": _indexed(_index_fill),
    "aten.index_reduce.default": _indexed(_index_reduce),
}
"""Calls that write where an index tensor says."""
