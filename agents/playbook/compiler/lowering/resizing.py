"""Resizing images as maps: nearest, linear and cubic, by sizes or by factors that the sizes round."""

from __future__ import annotations

import struct
from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import Call, f, is_float, like, wide
from agents.playbook.compiler.lowering.reductions import Lowered
from agents.playbook.compiler.lowering.sampling import cubic_weights
from agents.playbook.compiler.tensors import Index, mapped
from agents.playbook.compiler.terms import INDEX, Term, as_index, cast, const, make, number, over, plus, register, times


def _nearest(rank: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        first = len(source.shape) - rank
        scales = _scales(call, 2, rank)

        def define(index: Index) -> Term:
            own = [
                _nearest_place(index[axis], source.shape[axis], call.shape[axis], scales[axis - first])
                for axis in range(first, first + rank)
            ]
            return source.at((*index[:first], *own))

        return mapped(call.shape, call.dtype, define)

    return lower


def _scales(call: Call, at: int, rank: int) -> list[float | None]:
    """Return the factor that each axis was resized by, where the call names it: the sizes round it."""
    if call.node.op.endswith(".vec"):
        given = call.argument(at, "scale_factors")
        return [float(str(item)) for item in given] if isinstance(given, list) else [None] * rank
    names = ("scales",) if rank == 1 else ("scales_d", "scales_h", "scales_w")[3 - rank :]
    items = [(place, name, call.argument(place, name)) for place, name in enumerate(names, at)]
    return [None if item is None else call.real(place, name) for place, name, item in items]


def _step(size: int, wanted: int, scale: float | None) -> float:
    """Return how far apart two neighbours of the result lie in the source."""
    return 1 / scale if scale is not None and scale > 0 else size / wanted


def _nearest_exact(rank: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        source = call.tensor(0)
        first = len(source.shape) - rank
        scales = _scales(call, 2, rank)

        def place(out: Term, size: int, wanted: int, scale: float | None) -> Term:
            middle = f("add", cast(out, "float32"), const(0.5, "float32"))
            step = const(_as_float32(_step(size, wanted, scale)), "float32")
            return as_index(cast(f("mul", middle, step), "int64"), size)

        def define(index: Index) -> Term:
            sizes = zip(index[first:], source.shape[first:], call.shape[first:], scales, strict=True)
            return source.at((*index[:first], *(place(*item) for item in sizes)))

        return mapped(call.shape, call.dtype, define)

    return lower


def _bicubic(call: Call) -> Lowered:
    """Return an image resized by cubic kernels over four neighbours on each axis, those outside taken at the edge."""
    _require_floats(call)
    source, aligned = call.tensor(0), call.flag(2, "align_corners")
    kind, scales = wide(call.dtype), _scales(call, 3, 2)

    def taps(out: Term, size: int, wanted: int, scale: float | None) -> list[tuple[Term, Term]]:
        position = _position(out, size, wanted, kind, None if aligned else _step(size, wanted, scale))
        low = f("fn_floor", position)
        weights = cubic_weights(f("sub", position, low))
        return [
            (as_index(cast(f("add", low, like(step, low)), "int64"), size), weight)
            for step, weight in zip((-1, 0, 1, 2), weights, strict=True)
        ]

    def define(index: Index) -> Term:
        down, right = (taps(index[a], source.shape[a], call.shape[a], scales[a - 2]) for a in (2, 3))
        result = const(0, kind)
        for row, share in down:
            line = const(0, kind)
            for column, weight in right:
                line = f("add", line, f("mul", weight, cast(source.at((*index[:2], row, column)), kind)))
            result = f("add", result, f("mul", share, line))
        return cast(result, register(call.dtype))

    return mapped(call.shape, call.dtype, define)


def _require_floats(call: Call) -> None:
    if not is_float(call.dtype):
        call.refuse(f"of {call.dtype} the nearest element is supported; convert to a float for others")


def _nearest_place(out: Term, size: int, wanted: int, scale: float | None) -> Term:
    """Return the place that PyTorch takes: found in float32, but for sizes that are equal or doubled."""
    step = _as_float32(_step(size, wanted, scale))
    whole = wanted in (size, 2 * size) or all(
        min(int(_as_float32(place * step)), size - 1) == place * size // wanted for place in range(wanted)
    )
    if whole:
        return over(times(out, size), wanted)
    position = f("mul", cast(out, "float32"), const(step, "float32"))
    return as_index(cast(position, "int64"), size)


def _as_float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _linear_resize(rank: int) -> Callable[[Call], Lowered]:
    def lower(call: Call) -> Lowered:
        _require_floats(call)
        source = call.tensor(0)
        aligned = call.flag(2, "align_corners")
        first, kind = len(source.shape) - rank, wide(call.dtype)
        scales = _scales(call, 3, rank)

        def define(index: Index) -> Term:
            corners: list[tuple[Term, list[Term]]] = [(const(1, kind), [])]
            for axis in range(rank):
                size, wanted = source.shape[first + axis], call.shape[first + axis]
                step = None if aligned else _step(size, wanted, scales[axis])
                low, high, weight = _neighbours(index[first + axis], size, wanted, kind, step)
                rest = f("sub", like(1, weight), weight)
                corners = [
                    (f("mul", share, part), [*places, place])
                    for share, places in corners
                    for place, part in ((low, rest), (high, weight))
                ]
            result = None
            for share, places in corners:
                value = f("mul", share, cast(source.at((*index[:first], *places)), kind))
                result = value if result is None else f("add", result, value)
            return cast(result, register(call.dtype)) if result is not None else const(0, kind)

        return mapped(call.shape, call.dtype, define)

    return lower


def _neighbours(out: Term, size: int, wanted: int, kind: str, step: float | None) -> tuple[Term, Term, Term]:
    """Return the two places around a resized axis' position and the weight of the second; no step: corners align."""
    position = f("fn_max", _position(out, size, wanted, kind, step), const(0, kind))
    low = as_index(cast(position, "int64"), size)
    following = plus(low, number(1))
    high = make("fn_min", INDEX, following, number(size - 1), low=0, high=size - 1)
    return low, high, f("sub", position, cast(low, kind))


def _position(out: Term, size: int, wanted: int, kind: str, step: float | None) -> Term:
    """Return where an element of a resized axis lies in the source; no step: corners align."""
    at = cast(out, kind)
    if step is None:
        return f("mul", at, const((size - 1) / (wanted - 1) if wanted > 1 else 0.0, kind))
    half = const(0.5, kind)
    return f("sub", f("mul", f("add", at, half), const(step, kind)), half)


RESIZING: dict[str, Callable[[Call], Lowered]] = {
    **{f"aten.upsample_nearest{n}d.{kind}": _nearest(n) for n in (1, 2, 3) for kind in ("default", "vec")},
    **{f"aten._upsample_nearest_exact{n}d.{kind}": _nearest_exact(n) for n in (1, 2, 3) for kind in ("default", "vec")},
    **{f"aten.upsample_bicubic2d.{kind}": _bicubic for kind in ("default", "vec")},
    **{
        f"aten.upsample_{name}.{kind}": _linear_resize(n)
        for n, name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d"))
        for kind in ("default", "vec")
    },
}
"""Calls that resize images."""
