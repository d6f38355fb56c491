"""Calls that move elements in ways that no view can: cat, pad, flip, gather, embedding, factories."""

from __future__ import annotations

from collections.abc import Callable

from agents.playbook.compiler.lowering.calls import KEYWORD, RUN_TIME_SIZE, Call, f, read, wrapped
from agents.playbook.compiler.lowering.pointwise import converted
from agents.playbook.compiler.tensors import Index, Map, Tensor, mapped
from agents.playbook.compiler.terms import (
    BOOL,
    INDEX,
    Term,
    as_index,
    both,
    cast,
    compare,
    const,
    guarded,
    linear,
    make,
    minus,
    modulo,
    number,
    over,
    plus,
    register,
    restricted,
    times,
    unravel,
    where,
    within,
)


def _replaced(index: Index, axis: int, item: Term) -> Index:
    return (*index[:axis], item, *index[axis + 1 :])


def _cat(call: Call) -> Tensor:
    parts = [part for part in call.tensors(0) if part.shape != (0,)]
    return joined(call, parts, wrapped(call.whole(1, "dim", 0), len(call.shape)))


def joined(call: Call, parts: list[Tensor], axis: int) -> Tensor:
    """Return tensors one after the other along an axis."""

    def define(index: Index) -> Term:
        start = 0
        places: list[tuple[Term, Term]] = []
        for part in parts:
            own = minus(index[axis], number(start))
            start += part.shape[axis]
            inside = within(own, 0, part.shape[axis])
            if inside.op == "const" and not inside.data:
                continue
            value = cast(part.at(_replaced(index, axis, own)), register(call.dtype))
            places.append((compare("lt", index[axis], number(start)), restricted(inside, value)))
        result = places[-1][1]
        for before, value in reversed(places[:-1]):
            result = where(before, value, result)
        return result

    return mapped(call.shape, call.dtype, define)


def _stack(call: Call) -> Tensor:
    parts = call.tensors(0)
    axis = wrapped(call.whole(1, "dim", 0), len(call.shape))
    longer = [Map((*part.shape[:axis], 1, *part.shape[axis:]), part.dtype, _without(part, axis)) for part in parts]
    return joined(call, list(longer), axis)


def _without(part: Tensor, axis: int) -> Callable[[Index], Term]:
    return lambda index: part.at((*index[:axis], *index[axis + 1 :]))


def _flip(call: Call) -> Tensor:
    source = call.tensor(0)
    axes = {wrapped(axis, len(source.shape)) for axis in call.sizes(1, "dims")}

    def define(index: Index) -> Term:
        return source.at(
            [minus(number(source.shape[axis] - 1), item) if axis in axes else item for axis, item in enumerate(index)]
        )

    return mapped(source.shape, source.dtype, define)


def _roll(call: Call) -> Tensor:
    source, shifts, axes = call.tensor(0), call.sizes(1, "shifts"), call.sizes(2, "dims", [])
    if not axes:  # in row-major order, whatever the shape
        moved = -shifts[0] % source.size
        return mapped(source.shape, source.dtype, lambda index: source.at(_further(index, source, moved)))
    moves = dict.fromkeys((wrapped(axis, len(source.shape)) for axis in axes), 0)
    for axis, shift in zip(axes, shifts, strict=True):
        moves[wrapped(axis, len(source.shape))] += shift

    def define(index: Index) -> Term:
        return source.at(
            [
                modulo(plus(item, number(-moves[axis] % size)), size) if axis in moves else item
                for axis, (item, size) in enumerate(zip(index, source.shape, strict=True))
            ]
        )

    return mapped(source.shape, source.dtype, define)


def _further(index: Index, source: Tensor, step: int) -> Index:
    """Return the index of the element that lies so many elements further in row-major order, around the end."""
    place = linear(index, Tensor(source.shape, source.dtype).strides())
    return unravel(modulo(plus(place, number(step)), source.size), source.shape)


def _cross(call: Call) -> Tensor:
    a, b = call.tensor(0), call.tensor(1)
    axis = wrapped(call.whole(KEYWORD, "dim", -1), len(call.shape))

    def define(index: Index) -> Term:
        after, before = (_replaced(index, axis, modulo(plus(index[axis], number(step)), 3)) for step in (1, 2))
        first = f("mul", read(a, after), read(b, before))
        return f("sub", first, f("mul", read(a, before), read(b, after)))

    return mapped(call.shape, call.dtype, define)


def _repeat(call: Call) -> Tensor:
    source = call.tensor(0)
    first = len(call.shape) - len(source.shape)
    return mapped(
        call.shape,
        source.dtype,
        lambda index: source.at([modulo(index[first + axis], size) for axis, size in enumerate(source.shape)]),
    )


def _constant_pad(call: Call) -> Tensor:
    value = const(call.real(2, "value", 0), register(call.dtype))
    return padded(call.tensor(0), call.sizes(1, "pad"), call.shape, value)


def padded(source: Tensor, pad: list[int], shape: tuple[int, ...], value: Term) -> Tensor:
    """Return the tensor with a constant around it; ``pad`` as PyTorch orders it, last axis first."""

    def define(index: Index) -> Term:
        own = list(index)
        for place in range(len(pad) // 2):
            axis = len(shape) - 1 - place
            own[axis] = minus(index[axis], number(pad[2 * place]))
        inside = both(*(within(item, 0, size) for item, size in zip(own, source.shape, strict=True)))
        return guarded(inside, source.at(own), value)

    return mapped(shape, source.dtype, define)


def _edge_pad(mirrored: bool) -> Callable[[Call], Tensor]:
    def lower(call: Call) -> Tensor:
        source, pad = call.tensor(0), call.sizes(1, "padding")

        def define(index: Index) -> Term:
            own = list(index)
            for place in range(len(pad) // 2):
                axis = len(source.shape) - 1 - place
                last = number(source.shape[axis] - 1)
                item = minus(index[axis], number(pad[2 * place]))
                below, above = compare("lt", item, number(0)), compare("gt", item, last)
                low = times(item, -1) if mirrored else number(0)
                high = minus(times(last, 2), item) if mirrored else last
                own[axis] = _between(where(below, low, where(above, high, item)), source.shape[axis])
            return source.at(own)

        return mapped(call.shape, source.dtype, define)

    return lower


def _between(term: Term, size: int) -> Term:
    return make("where", INDEX, *term.args, low=0, high=size - 1) if term.op == "where" else term


def _tril(upper: bool) -> Callable[[Call], Tensor]:
    def lower(call: Call) -> Tensor:
        source, offset = call.tensor(0), call.whole(1, "diagonal", 0)

        def define(index: Index) -> Term:
            ahead = minus(index[-1], index[-2])
            inside = compare("ge" if upper else "le", ahead, number(offset))
            return guarded(inside, source.at(index), const(0, source.register))

        return mapped(source.shape, source.dtype, define)

    return lower


def _gather(call: Call) -> Tensor:
    source, axis, places = call.tensor(0), call.whole(1, "dim"), call.tensor(2)
    axis = wrapped(axis, len(source.shape))
    return mapped(
        call.shape,
        source.dtype,
        lambda index: (
            source.at(_replaced(index, axis, as_index(places.at(index), source.shape[axis])))
            if source.shape
            else source.at(())
        ),
    )


def _index_select(call: Call) -> Tensor:
    source, places = call.tensor(0), call.tensor(2)
    axis = wrapped(call.whole(1, "dim"), len(source.shape))

    def define(index: Index) -> Term:
        place = places.at((index[axis],) if places.shape else ())
        return source.at(_replaced(index, axis, as_index(place, source.shape[axis])))

    return mapped(call.shape, source.dtype, define)


def _embedding(call: Call) -> Tensor:
    table, places = call.tensor(0), call.tensor(1)
    rank = len(places.shape)
    return mapped(
        call.shape,
        table.dtype,
        lambda index: table.at((as_index(places.at(index[:rank]), table.shape[0]), *index[rank:])),
    )


def _advanced_index(call: Call) -> Tensor:
    source, given = call.tensor(0), call.argument(1, "indices")
    items = given if isinstance(given, list) else []
    used = [axis for axis, item in enumerate(items) if item is not None]
    places = {axis: call.value(str(items[axis]["ref"])) for axis in used if isinstance(items[axis], dict)}
    if len(places) != len(used):
        call.refuse("one of its indices is not a tensor")
    if any(item.dtype in (BOOL, "uint8") for item in places.values()):
        call.refuse(RUN_TIME_SIZE)
    rank = max(len(item.shape) for item in places.values())
    neighbours = used == list(range(used[0], used[-1] + 1))
    first = used[0] if neighbours else 0  # where the axes of the index tensors go

    def define(index: Index) -> Term:
        inner = index[first : first + rank]
        rest = iter((*index[:first], *index[first + rank :]))
        return source.at(
            [
                as_index(read(places[axis], inner), size, wrap=True) if axis in places else next(rest)
                for axis, size in enumerate(source.shape)
            ]
        )

    return mapped(call.shape, source.dtype, define)


def _diagonal_matrix(call: Call) -> Tensor:
    source, offset = call.tensor(0), call.whole(1, "offset", 0)
    first, second = (wrapped(call.whole(at, "dim", default), len(call.shape)) for at, default in ((2, -2), (3, -1)))

    def define(index: Index) -> Term:
        rest = [item for axis, item in enumerate(index) if axis not in (first, second)]
        on = compare("eq", plus(index[first], number(offset)), index[second])
        place = index[first] if offset >= 0 else index[second]
        return guarded(on, source.at((*rest, place)), const(0, source.register))

    return mapped(call.shape, call.dtype, define)


def _pixel_shuffle(call: Call) -> Tensor:
    source, factor = call.tensor(0), call.whole(1, "upscale_factor")

    def define(index: Index) -> Term:
        *rest, channel, row, column = index
        inner = plus(times(modulo(row, factor), factor), modulo(column, factor))
        own = plus(times(channel, factor * factor), inner)
        return source.at((*rest, own, over(row, factor), over(column, factor)))

    return mapped(call.shape, source.dtype, define)


def _pixel_unshuffle(call: Call) -> Tensor:
    source, factor = call.tensor(0), call.whole(1, "downscale_factor")

    def define(index: Index) -> Term:
        *rest, channel, row, column = index
        inner = modulo(channel, factor * factor)
        down, right = over(inner, factor), modulo(inner, factor)
        place = (plus(times(row, factor), down), plus(times(column, factor), right))
        return source.at((*rest, over(channel, factor * factor), *place))

    return mapped(call.shape, source.dtype, define)


def _channel_shuffle(call: Call) -> Tensor:
    source, groups = call.tensor(0), call.whole(1, "groups")
    each = source.shape[1] // groups

    def define(index: Index) -> Term:
        place = plus(times(modulo(index[1], groups), each), over(index[1], groups))
        return source.at(_replaced(index, 1, place))

    return mapped(call.shape, source.dtype, define)


def _take(call: Call) -> Tensor:
    source, places = call.tensor(0), call.tensor(1)
    return mapped(
        call.shape,
        source.dtype,
        lambda index: source.at(unravel(as_index(places.at(index), source.size, wrap=True), source.shape)),
    )


def _turned(call: Call) -> Tensor:
    """Return a tensor turned by quarters in a plane."""
    source, turns = call.tensor(0), call.whole(1, "k", 1) % 4
    first, second = (wrapped(axis, len(source.shape)) for axis in call.sizes(2, "dims", [0, 1]))

    def define(index: Index) -> Term:
        a, b = (index[second], index[first]) if turns % 2 else (index[first], index[second])
        own = list(index)
        own[first] = minus(number(source.shape[first] - 1), a) if turns in (2, 3) else a
        own[second] = minus(number(source.shape[second] - 1), b) if turns in (1, 2) else b
        return source.at(own)

    return mapped(call.shape, source.dtype, define)


def _glu(call: Call) -> Tensor:
    source = call.tensor(0)
    axis = wrapped(call.whole(1, "dim", -1), len(source.shape))
    half, kind = source.shape[axis] // 2, source.register

    def define(index: Index) -> Term:
        gate = source.at(_replaced(index, axis, plus(index[axis], number(half))))
        soft = make("add", kind, const(1, kind), make("fn_exp", kind, make("fn_neg", kind, gate)))
        return make("div", kind, source.at(index), soft)

    return mapped(call.shape, source.dtype, define)


GATHERS: dict[str, Callable[[Call], Tensor]] = {
    "aten.clone.default": lambda call: converted(call.tensor(0), call.dtype),
    "aten.lift_fresh_copy.default": lambda call: converted(call.tensor(0), call.dtype),
    "aten.copy.default": lambda call: mapped(
        call.shape, call.dtype, lambda index: read(converted(call.tensor(1), call.dtype), index)
    ),
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.linalg_cross.default": _cross,
    "aten.repeat.default": _repeat,
    "aten.constant_pad_nd.default": _constant_pad,
    **{f"aten.reflection_pad{n}d.default": _edge_pad(mirrored=True) for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": _edge_pad(mirrored=False) for n in (1, 2, 3)},
    "aten.tril.default": _tril(upper=False),
    "aten.triu.default": _tril(upper=True),
    "aten.gather.default": _gather,
    "aten.index_select.default": _index_select,
    "aten.embedding.default": _embedding,
    **dict.fromkeys(("aten.index.Tensor", "aten._unsafe_index.Tensor"), _advanced_index),
    "aten.diag_embed.default": _diagonal_matrix,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.native_channel_shuffle.default": _channel_shuffle,
    "aten.take.default": _take,
    "aten.rot90.default": _turned,
    "aten.glu.default": _glu,
}
"""Calls that make one tensor from elements of others."""
