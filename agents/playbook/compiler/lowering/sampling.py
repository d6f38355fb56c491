"""Sampling an image at places that a tensor names: ``grid_sample`` in two and three dimensions, and affine grids."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import Call, f, like, wide
from agents.playbook.compiler.tensors import Index, Tensor, mapped
from agents.playbook.compiler.terms import (
    Term,
    as_index,
    both,
    cast,
    compare,
    const,
    number,
    register,
    restricted,
    where,
)

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2
_CUBIC = -0.75
"""Coefficient of the cubic kernel, as in PyTorch."""
Tap = tuple[Term, Term]
"""A coordinate, a whole number held as a float, and its weight."""


def _grid_sampler(call: Call) -> Tensor:
    source, grid = call.tensor(0), call.tensor(1)
    mode, padding = call.whole(2, "interpolation_mode"), call.whole(3, "padding_mode")
    aligned = call.flag(4, "align_corners")
    sizes, kind = source.shape[2:], wide(call.dtype)

    def define(index: Index) -> Term:
        taps: list[tuple[list[Term], Term]] = [([], const(1, kind))]
        for axis, size in enumerate(sizes):
            place = cast(grid.at((index[0], *index[2:], number(len(sizes) - 1 - axis))), kind)
            own = _taps(_unnormalized(place, size, aligned=aligned), size, mode, padding, aligned=aligned)
            taps = [([*before, at], f("mul", weight, part)) for before, weight in taps for at, part in own]
        result = const(0, kind)
        for places, weight in taps:
            inside = both(*(_within(at, size) for at, size in zip(places, sizes, strict=True)))
            indices = (as_index(cast(at, "int64"), size) for at, size in zip(places, sizes, strict=True))
            value = cast(source.at((*index[:2], *indices)), kind)
            result = f("add", result, where(inside, restricted(inside, f("mul", weight, value)), const(0, kind)))
        return cast(result, register(call.dtype))

    return mapped(call.shape, call.dtype, define)


def _unnormalized(place: Term, size: int, *, aligned: bool) -> Term:
    """Return a coordinate from -1 to 1 in elements: of the corners' middles where aligned, else of the edges."""
    ahead = f("add", place, like(1, place))
    if aligned:
        return f("mul", f("div", ahead, like(2, place)), like(size - 1, place))
    return f("div", f("sub", f("mul", ahead, like(size, place)), like(1, place)), like(2, place))


def _taps(place: Term, size: int, mode: int, padding: int, *, aligned: bool) -> list[Tap]:
    """Return the coordinates along an axis that a place is made of."""
    if mode != _BICUBIC:
        place = _padded(place, size, padding, aligned=aligned)
    if mode == _NEAREST:
        return [(f("fn_round", place), like(1, place))]
    low = f("fn_floor", place)
    part = f("sub", place, low)
    if mode == _BILINEAR:
        return [(low, f("sub", like(1, part), part)), (f("add", low, like(1, low)), part)]
    weights = cubic_weights(part)
    return [
        (_padded(f("add", low, like(step, low)), size, padding, aligned=aligned), weight)
        for step, weight in zip((-1, 0, 1, 2), weights, strict=True)
    ]


def cubic_weights(part: Term) -> list[Term]:
    """Return the weights of four neighbours of a place that lies so far behind the second."""
    return [
        _outer_cubic(f("add", part, like(1, part))),
        _inner_cubic(part),
        _inner_cubic(f("sub", like(1, part), part)),
        _outer_cubic(f("sub", like(2, part), part)),
    ]


def _inner_cubic(x: Term) -> Term:
    inner = f("sub", f("mul", like(_CUBIC + 2, x), x), like(_CUBIC + 3, x))
    return f("add", f("mul", f("mul", inner, x), x), like(1, x))


def _outer_cubic(x: Term) -> Term:
    inner = f("sub", f("mul", like(_CUBIC, x), x), like(5 * _CUBIC, x))
    return f("sub", f("mul", f("add", f("mul", inner, x), like(8 * _CUBIC, x)), x), like(4 * _CUBIC, x))


def _padded(place: Term, size: int, padding: int, *, aligned: bool) -> Term:
    """Return a coordinate as the padding mode moves it into the image."""
    if padding == _ZEROS:
        return place
    if padding == _REFLECTION:
        place = _reflected(place, 0.0 if aligned else -0.5, size - 1 if aligned else size)
    return f("fn_min", f("fn_max", place, like(0, place)), like(size - 1, place))


def _reflected(place: Term, low: float, span: int) -> Term:
    if span == 0:
        return like(0, place)
    away = f("fn_abs", f("sub", place, like(low, place)))
    rest = f("fn_fmod", away, like(span, away))
    flips = f("fn_fmod", f("fn_floor", f("div", away, like(span, away))), like(2, away))
    even = compare("eq", flips, like(0, flips))
    return f("add", where(even, rest, f("sub", like(span, rest), rest)), like(low, rest))


def _within(place: Term, size: int) -> Term:
    return both(compare("ge", place, like(0, place)), compare("le", place, like(size - 1, place)))


def _affine_grid(call: Call) -> Tensor:
    theta, aligned = call.tensor(0), call.flag(2, "align_corners")
    sizes, kind = call.sizes(1, "size")[2:], wide(call.dtype)

    def define(index: Index) -> Term:
        def entry(column: int) -> Term:
            return cast(theta.at((index[0], index[-1], number(column))), kind)

        result = entry(len(sizes))
        for axis, size in enumerate(sizes):
            own = _normalized(cast(index[1 + axis], kind), size, aligned=aligned)
            result = f("add", result, f("mul", entry(len(sizes) - 1 - axis), own))
        return cast(result, register(call.dtype))

    return mapped(call.shape, call.dtype, define)


def _normalized(place: Term, size: int, *, aligned: bool) -> Term:
    """Return a place along an axis of a grid from -1 to 1."""
    if aligned:
        return like(0, place) if size == 1 else f("sub", f("mul", place, like(2 / (size - 1), place)), like(1, place))
    ahead = f("add", f("mul", place, like(2, place)), like(1, place))
    return f("sub", f("div", ahead, like(size, place)), like(1, place))


SAMPLING: dict[str, Callable[[Call], Tensor]] = {
    "aten.grid_sampler_2d.default": _grid_sampler,
    "aten.grid_sampler_3d.default": _grid_sampler,
    "aten.affine_grid_generator.default": _affine_grid,
}
"""Calls that sample images."""
