"""Calls that only say where an element is found: views, each with its inverse, so that writes through one are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.lowering.calls import Call, wrapped
from agents.playbook.compiler.tensors import Given, Index, Map, Shape, Tensor
from agents.playbook.compiler.terms import (
    Term,
    both,
    compare,
    guarded,
    linear,
    minus,
    modulo,
    number,
    over,
    plus,
    times,
    unravel,
    within,
)


@dataclass(frozen=True)
class View:
    """One result of a view: its shape, where its elements come from, and where one of the base's goes to."""

    shape: Shape
    source: Callable[[Index], Index]
    target: Callable[[Index], tuple[Term, Index]] | None
    """Condition that an element of the base is in the view, and its index there; None where elements overlap."""

    def of(self, base: Tensor) -> Map:
        """Return the view of a base."""
        return Map(self.shape, base.dtype, lambda index: base.at(self.source(index)))

    def written(self, call: Call, base: Tensor, new: Tensor) -> Map:
        """Return the base after the view was overwritten."""
        if self.target is None:
            call.refuse("it writes to a view whose elements may overlap")
        target = self.target

        def define(index: Index) -> Term:
            inside, place = target(index)
            return guarded(inside, new.at(place), base.at(index))

        return Map(base.shape, base.dtype, define)


ALWAYS = both()


def reshape(old: Shape, new: Shape) -> View:
    """Return the view of the same elements, in the same order, in another shape."""
    return View(new, lambda index: reindexed(index, new, old), lambda index: (ALWAYS, reindexed(index, old, new)))


def reindexed(index: Index, shape: Shape, other: Shape) -> Index:
    """Return the index, in another shape, of the element at an index of a shape."""
    result: list[Term] = []
    i = j = 0
    while i < len(shape) or j < len(other):
        mine, theirs = [i], [j]
        i, j = i + 1, j + 1
        while prod(shape[a] for a in mine if a < len(shape)) != prod(other[b] for b in theirs if b < len(other)):
            left = prod(shape[a] for a in mine if a < len(shape))
            right = prod(other[b] for b in theirs if b < len(other))
            if left < right:
                mine.append(i)
                i += 1
            else:
                theirs.append(j)
                j += 1
        sizes = [shape[a] for a in mine if a < len(shape)]
        wanted = [other[b] for b in theirs if b < len(other)]
        items = [index[a] for a in mine if a < len(shape)]
        strides = [prod(sizes[k + 1 :]) for k in range(len(sizes))]
        result += unravel(linear(items, strides), wanted)
    return tuple(result)


def permute(shape: Shape, order: list[int]) -> View:
    """Return the view with its axes in another order."""
    back = {axis: place for place, axis in enumerate(order)}
    rank = range(len(shape))
    return View(
        tuple(shape[axis] for axis in order),
        lambda index: tuple(index[back[axis]] for axis in rank),
        lambda index: (ALWAYS, tuple(index[axis] for axis in order)),
    )


def expand(old: Shape, new: Shape) -> View:
    """Return the view with axes of one element repeated."""
    first = len(new) - len(old)
    same = old == new

    def source(index: Index) -> Index:
        return tuple(number(0) if size == 1 else index[first + axis] for axis, size in enumerate(old))

    return View(new, source, (lambda index: (ALWAYS, index)) if same else None)


def narrowed(shape: Shape, axis: int, start: int, size: int, step: int = 1) -> View:
    """Return the view of a range of one axis."""

    def source(index: Index) -> Index:
        return (*index[:axis], plus(times(index[axis], step), number(start)), *index[axis + 1 :])

    def target(index: Index) -> tuple[Term, Index]:
        ahead = minus(index[axis], number(start))
        fits = both(
            compare("ge", ahead, number(0)),
            compare("eq", modulo(ahead, step), number(0)),
            compare("lt", ahead, number(size * step)),
        )
        return fits, (*index[:axis], over(ahead, step), *index[axis + 1 :])

    return View((*shape[:axis], size, *shape[axis + 1 :]), source, target)


def selected(shape: Shape, axis: int, place: int) -> View:
    """Return the view of one place on an axis, which goes."""
    return View(
        (*shape[:axis], *shape[axis + 1 :]),
        lambda index: (*index[:axis], number(place), *index[axis:]),
        lambda index: (compare("eq", index[axis], number(place)), (*index[:axis], *index[axis + 1 :])),
    )


def windows(shape: Shape, axis: int, size: int, step: int) -> View:
    """Return the view of overlapping windows along an axis, their elements on a new last axis."""
    count = (shape[axis] - size) // step + 1

    def source(index: Index) -> Index:
        return (*index[:axis], plus(times(index[axis], step), index[-1]), *index[axis + 1 : -1])

    return View((*shape[:axis], count, *shape[axis + 1 :], size), source, None)


def diagonal(shape: Shape, offset: int, first: int, second: int, size: int) -> View:
    """Return the view of a diagonal, on a new last axis."""
    rest = [axis for axis in range(len(shape)) if axis not in (first, second)]
    down, right = max(-offset, 0), max(offset, 0)

    def source(index: Index) -> Index:
        full = dict(zip(rest, index[:-1], strict=True))
        full[first], full[second] = plus(index[-1], number(down)), plus(index[-1], number(right))
        return tuple(full[axis] for axis in range(len(shape)))

    def target(index: Index) -> tuple[Term, Index]:
        place = minus(index[first], number(down))
        on = both(compare("eq", place, minus(index[second], number(right))), within(place, 0, size))
        return on, (*(index[axis] for axis in rest), place)

    return View((*(shape[axis] for axis in rest), size), source, target)


def _as_strided(call: Call, shape: Shape) -> list[View]:
    """Return the view of a given tensor that lies densely in its storage; where others lie is not known."""
    base = call.tensor(0)
    sizes, strides = tuple(call.sizes(1, "size")), call.sizes(2, "stride")
    start = call.whole(3, "storage_offset", 0) if call.argument(3, "storage_offset") is not None else 0
    if not isinstance(base, Given) or base.strides() != Tensor(shape, base.dtype).strides():
        call.refuse(
            "strides are followed only of a contiguous input, parameter or buffer itself; indexing, unfold, reshape "
            "and transpose are supported everywhere"
        )

    def source(index: Index) -> Index:
        return unravel(plus(linear(index, strides), number(start)), shape)

    return [View(sizes, source, None)]


def is_view(op: str) -> bool:
    """Return whether a call makes views of its first argument."""
    return op in VIEWS


def views(call: Call, op: str) -> list[View] | None:
    """Return one view for each result of a call; None for a call that makes no views."""
    maker = VIEWS.get(op)
    return None if maker is None else maker(call, call.tensor(0).shape)


def _same(call: Call, shape: Shape) -> list[View]:  # noqa: ARG001
    return [expand(shape, shape)]


def _reshape(call: Call, shape: Shape) -> list[View]:
    if prod(call.shape) != prod(shape):
        call.refuse("the number of elements changes")
    return [reshape(shape, call.shape)]


def _transpose(call: Call, shape: Shape) -> list[View]:
    order = list(range(len(shape)))
    if call.op in ("aten.transpose.int", "aten.transpose.default", "aten.swapaxes.default"):
        a, b = (wrapped(call.whole(at, "dim"), len(shape)) for at in (1, 2))
    elif len(shape) < 2:
        return [expand(shape, shape)]
    else:
        a, b = len(shape) - 2, len(shape) - 1
    order[a], order[b] = order[b], order[a]
    return [permute(shape, order)]


def _permute(call: Call, shape: Shape) -> list[View]:
    return [permute(shape, [wrapped(axis, len(shape)) for axis in call.sizes(1, "dims")])]


def _slice(call: Call, shape: Shape) -> list[View]:
    axis, step = wrapped(call.whole(1, "dim", 0), len(shape)), call.whole(4, "step", 1)
    given = call.argument(2, "start")
    start = 0 if given is None else call.whole(2, "start")
    start = max(0, min(start + shape[axis] if start < 0 else start, shape[axis]))
    return [narrowed(shape, axis, start, call.shape[axis], step)]


def _select(call: Call, shape: Shape) -> list[View]:
    axis = wrapped(call.whole(1, "dim"), len(shape))
    return [selected(shape, axis, wrapped(call.whole(2, "index"), shape[axis]))]


def _split(call: Call, shape: Shape) -> list[View]:
    axis = wrapped(call.whole(2, "dim", 0), len(shape))
    parts: list[View] = []
    start = 0
    for part in call.node.shapes:
        parts.append(narrowed(shape, axis, start, part[axis]))
        start += part[axis]
    return parts


def _unbind(call: Call, shape: Shape) -> list[View]:
    axis = wrapped(call.whole(1, "dim", 0), len(shape))
    return [selected(shape, axis, place) for place in range(shape[axis])]


def _unfold(call: Call, shape: Shape) -> list[View]:
    axis = wrapped(call.whole(1, "dimension"), len(shape))
    return [windows(shape, axis, call.whole(2, "size"), call.whole(3, "step"))]


def _diagonal(call: Call, shape: Shape) -> list[View]:
    first, second = (wrapped(call.whole(at, "dim", default), len(shape)) for at, default in ((2, 0), (3, 1)))
    return [diagonal(shape, call.whole(1, "offset", 0), first, second, call.shape[-1])]


VIEWS: dict[str, Callable[[Call, Shape], list[View]]] = {
    **{f"aten.{name}.default": _same for name in ("alias", "detach", "lift_fresh", "positive", "contiguous")},
    **{
        f"aten.{name}": _reshape
        for name in (
            *("view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default", "view_as.default"),
            *("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "flatten.using_ints"),
            "unflatten.int",
        )
    },
    **{f"aten.{name}.default": _transpose for name in ("t", "transpose", "mT", "swapaxes")},
    "aten.transpose.int": _transpose,
    "aten.permute.default": _permute,
    "aten.expand.default": lambda call, shape: [expand(shape, call.shape)],
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split.Tensor": _split,
    "aten.unsafe_split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.unbind.int": _unbind,
    "aten.unfold.default": _unfold,
    "aten.diagonal.default": _diagonal,
    "aten.as_strided.default": _as_strided,
}
