"""Pooling as reductions over windows."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

from agents.playbook.compiler.lowering.calls import (
    Call,
    f,
    wide,
)
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.lowering.products import per_axis
from agents.playbook.compiler.lowering.reductions import Lowered
from agents.playbook.compiler.tensors import Index, Map, Reduce, kept, mapped
from agents.playbook.compiler.terms import (
    INDEX,
    Term,
    as_index,
    both,
    cast,
    compare,
    const,
    guarded,
    make,
    minus,
    modulo,
    number,
    over,
    plus,
    register,
    times,
    where,
    within,
)

_LOWEST = {"uint8": 0, "int8": -(2**7), "int16": -(2**15), "int32": -(2**31), "int64": -(2**63)}
"""Lowest value of each integer type, which the padding of a maximum has; that of floats is minus infinity."""


def _window(call: Call, rank: int) -> tuple[list[int], list[int], list[int]]:
    kernel = per_axis(call.sizes(1, "kernel_size"), rank)
    stride = per_axis(call.sizes(2, "stride", []) or kernel, rank)
    padding = per_axis(call.sizes(3, "padding", [0]), rank)
    return kernel, stride, padding


def _max_pool(rank: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        kernel, stride, padding = _window(call, rank)
        dilation = per_axis(call.sizes(4, "dilation", [1]), rank)
        source = kept(call.tensor(0), max(1, prod(kernel) // prod(stride)))
        first = len(source.shape) - rank

        def at(index: Index, inner: Index) -> tuple[Term, list[Term]]:
            places = [
                plus(times(index[first + a], stride[a]), plus(times(inner[a], dilation[a]), number(-padding[a])))
                for a in range(rank)
            ]
            return both(*(within(p, 0, source.shape[first + a]) for a, p in enumerate(places))), places

        def define(index: Index, inner: Index) -> Term:
            inside, places = at(index, inner)
            value = source.at((*index[:first], *places))
            return guarded(inside, value, const(_LOWEST.get(value.dtype, -inf), value.dtype))

        best = Reduce(call.shape, call.dtype, "max", tuple(kernel), source.register, define)
        where_best = Reduce(call.shape, "int64", "argmax", tuple(kernel), source.register, define)

        def inside(place: Term, axis: int) -> Term:
            """Return the place, or the first one of a window that is all minus infinity and begins in the padding."""
            step = dilation[axis]
            above = plus(place, number(-(-padding[axis] // step) * step))
            return where(compare("lt", place, number(0)), modulo(above, step), place)

        def flat(index: Index) -> Term:
            tap = as_index(where_best.at(index), prod(kernel))
            inner: list[Term] = []
            for axis in reversed(range(rank)):
                inner.insert(0, modulo(tap, kernel[axis]))
                tap = over(tap, kernel[axis])
            _, places = at(index, tuple(inner))
            result = number(0)
            for axis, place in enumerate(places):
                result = plus(times(result, source.shape[first + axis]), inside(place, axis))
            return cast(result, "int64")

        return [best, Map(call.shape, "int64", flat)]

    return lower


def _average_pool(rank: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        kernel, stride, padding = _window(call, rank)
        counts_padding = call.flag(5, "count_include_pad", default=True)
        override = call.argument(6, "divisor_override")
        source = kept(call.tensor(0), max(1, prod(kernel) // prod(stride)))
        first = len(source.shape) - rank
        kind = wide(call.dtype)

        def define(index: Index, inner: Index) -> Term:
            places = [
                plus(times(index[first + a], stride[a]), plus(inner[a], number(-padding[a]))) for a in range(rank)
            ]
            inside = both(*(within(p, 0, source.shape[first + a]) for a, p in enumerate(places)))
            return guarded(inside, cast(source.at((*index[:first], *places)), kind), const(0, kind))

        summed = Reduce(call.shape, kind, "sum", tuple(kernel), kind, define)

        def averaged(index: Index) -> Term:
            value = summed.at(index)
            if override is not None:
                count = const(call.whole(6, "divisor_override"), kind)
            else:
                count = const(1, kind)
                for axis in range(rank):
                    extent = source.shape[first + axis]
                    start = plus(times(index[first + axis], stride[axis]), number(-padding[axis]))
                    end = plus(start, number(kernel[axis]))
                    limit = extent + padding[axis] if counts_padding else extent
                    low = start if counts_padding else _index("fn_max", start, number(0))
                    count = f("mul", count, cast(minus(_index("fn_min", end, number(limit)), low), kind))
            return cast(f("div", value, count), register(call.dtype))

        return mapped(call.shape, call.dtype, averaged)

    return lower


def _index(op: str, a: Term, b: Term) -> Term:
    """Return the larger or smaller of two indices."""
    pick = max if op == "fn_max" else min
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    if low == high:
        return number(low)
    if (a.low >= b.high) if op == "fn_max" else (a.high <= b.low):
        return a
    return make(op, INDEX, a, b, low=low, high=high)


def _adaptive(rank: int, kind_of: str) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        first = len(source.shape) - rank
        kind = wide(call.dtype)
        sizes, wanted = source.shape[first:], call.shape[first:]
        extents = tuple(
            max(-(-(o + 1) * i // w) - o * i // w for o in range(w)) for i, w in zip(sizes, wanted, strict=True)
        )

        def bounds(index: Index, axis: int) -> tuple[Term, Term]:
            o, i, w = index[first + axis], sizes[axis], wanted[axis]
            return over(times(o, i), w), over(plus(times(plus(o, number(1)), i), number(w - 1)), w)

        def define(index: Index, inner: Index) -> Term:
            places, inside = [], []
            for axis in range(rank):
                start, end = bounds(index, axis)
                places.append(plus(start, inner[axis]))
                inside.append(compare("lt", places[-1], end))
            value = cast(source.at((*index[:first], *places)), kind)
            return guarded(both(*inside), value, const(0 if kind_of == "sum" else -inf, kind))

        found = Reduce(call.shape, kind, kind_of, extents, kind, define)
        if kind_of == "max":
            return [converted(found, call.dtype)]

        def averaged(index: Index) -> Term:
            value = found.at(index)
            for axis in range(rank):
                start, end = bounds(index, axis)
                value = f("div", value, cast(minus(end, start), kind))
            return cast(value, register(call.dtype))

        return mapped(call.shape, call.dtype, averaged)

    return lower


WINDOWS: dict[str, Callable[[Call], Lowered]] = {
    **{f"aten.max_pool{n}d_with_indices.default": _max_pool(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d.default": _average_pool(n) for n in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": _adaptive(n, "sum") for n in (2, 3)},
    "aten.adaptive_avg_pool1d.default": _adaptive(1, "sum"),
    **{f"aten.adaptive_max_pool{n}d.default": _adaptive(n, "max") for n in (2, 3)},
}
"""Pooling."""
