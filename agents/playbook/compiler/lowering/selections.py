"""Calls that choose elements by their order or place: k-th values, medians, running extremes, buckets."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import KEYWORD, Call, combined, is_float, reduced, squeezed, wide, wrapped
from agents.playbook.compiler.lowering.reductions import Lowered, axes_of, keeps, order_of, picked, result_of
from agents.playbook.compiler.tensors import Index, Map, Scan, Tensor, kept, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    Term,
    both,
    cast,
    compare,
    const,
    make,
    number,
    over,
    plus,
    register,
    restricted,
    unravel,
    where,
)
from agents.playbook.recognition.values import reference


def _kth(source: Tensor, axis: int, place: int) -> tuple[Tensor, Tensor]:
    """Return value and position of the element at a place of the ascending order along an axis, which stays."""
    order = order_of(source, axis, place + 1, largest=False)
    shape = (*order.shape[:axis], 1, *order.shape[axis + 1 :])
    places = Map(shape, "int64", lambda index: order.at((*index[:axis], number(place), *index[axis + 1 :])))
    return picked(source, axis, places), places


def _kthvalue(call: Call) -> Lowered:
    source = call.tensor(0)
    axis = wrapped(call.whole(2, "dim", -1), len(source.shape))
    found = _kth(source, axis, call.whole(1, "k") - 1)
    return list(found) if keeps(call, 3) else [squeezed(item, (axis,)) for item in found]


def _median(call: Call) -> Lowered:
    source = call.tensor(0)
    axis = wrapped(call.whole(1, "dim"), len(source.shape))
    found = _middle(source, axis)
    return list(found) if keeps(call, 2) else [squeezed(item, (axis,)) for item in found]


def _median_of_all(call: Call) -> Lowered:
    source = call.tensor(0)
    whole = Map((source.size,), source.dtype, lambda index: source.at(unravel(index[0], source.shape)))
    return squeezed(_middle(whole, 0)[0], (0,))


def _middle(source: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the lower median along an axis, which stays, and its position; NaN, and the first one's, if any is."""
    value, place = _kth(source, axis, (source.shape[axis] - 1) // 2)
    if not is_float(source.dtype):
        return value, place
    top = reduced(source, (axis,), "max", source.dtype)
    first = reduced(source, (axis,), "argmax", "int64")

    def unless_nan(usual: Term, largest: Term, otherwise: Term) -> Term:
        return where(compare("ne", largest, largest), otherwise, usual)

    return (
        combined(value.shape, source.dtype, unless_nan, value, top, top),
        combined(place.shape, "int64", unless_nan, place, top, first),
    )


def _running(kind: str) -> Callable[[Call], Lowered]:
    """Return values and positions of the extremes so far, of the last where several are equal."""

    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        if not source.shape:
            call.refuse("its tensor has no dimension")
        axis = wrapped(call.whole(1, "dim"), len(source.shape))
        values = Scan(source.shape, source.dtype, kind, axis, source.at)

        def place(index: Index) -> Term:
            own = source.at(index)
            hit = compare("eq", own, cast(values.at(index), own.dtype))
            hit = make("or", BOOL, hit, compare("ne", own, own))
            return where(hit, cast(index[axis], "int64"), const(-1, "int64"))

        return [values, Scan(source.shape, "int64", "max", axis, place)]

    return lower


def _sought(call: Call, at: int, edges: Tensor) -> Tensor:
    """Return the values to search for: a tensor, or a number in the type that the edges promote it to."""
    if reference(call.argument(at, "self")) is not None:
        return call.tensor(at)
    value = call.real(at, "self")
    kind = edges.register if isinstance(value, int) or is_float(edges.dtype) else "float32"
    return Map((), kind, lambda _: const(value, kind))


def _bucketize(call: Call) -> Lowered:
    edges = call.tensor(1)
    source = _sought(call, 0, edges)
    return _searched(call, source, edges, call.flag(3, "right"))


def _searchsorted(call: Call) -> Lowered:
    edges = call.tensor(0)
    source = _sought(call, 1, edges)
    right = call.flag(KEYWORD, "right") or call.argument(KEYWORD, "side") == "right"
    return _searched(call, source, edges, right)


def _searched(call: Call, source: Tensor, edges: Tensor, right: bool) -> Lowered:
    """Return where values would go into rows in order: the steps of PyTorch's search, so that any row will do."""
    size = edges.shape[-1]
    edges = kept(edges, size.bit_length())

    def define(index: Index) -> Term:
        row = index[:-1] if len(edges.shape) > 1 else ()
        value = source.at(index)
        low, high = number(0), number(size)
        for _ in range(size.bit_length()):
            middle = over(plus(low, high), 2)
            going = compare("lt", low, high)
            edge = restricted(going, edges.at((*row, middle)))
            kind = "float64" if "float" in value.dtype + edge.dtype else "int64"
            kind = value.dtype if value.dtype == edge.dtype else kind
            stops = compare("gt" if right else "ge", cast(edge, kind), cast(value, kind))
            later, sooner = both(going, make("not", BOOL, stops)), both(going, stops)
            low, high = where(later, plus(middle, number(1)), low), where(sooner, middle, high)
        return cast(low, register(call.dtype))

    return mapped(call.shape, call.dtype, define)


def _nansum(call: Call) -> Lowered:
    source = call.tensor(0)
    axes, kind = axes_of(call, 1, len(source.shape)), wide(call.dtype)

    def present(term: Term) -> Term:
        return cast(where(compare("ne", term, term), const(0, term.dtype), term), kind)

    return result_of(call, reduced(source, axes, "sum", kind, present), axes, keeps(call, 2))


SELECTIONS: dict[str, Callable[[Call], Lowered]] = {
    "aten.kthvalue.default": _kthvalue,
    "aten.median.dim": _median,
    "aten.median.default": _median_of_all,
    "aten.cummax.default": _running("max"),
    "aten.cummin.default": _running("min"),
    **{f"aten.bucketize.{kind}": _bucketize for kind in ("Tensor", "Scalar")},
    **{f"aten.searchsorted.{kind}": _searchsorted for kind in ("Tensor", "Scalar")},
    "aten.nansum.default": _nansum,
}
"""Calls that choose elements by order."""
