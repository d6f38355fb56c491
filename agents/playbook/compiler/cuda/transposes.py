"""Maps on the ``cuda`` target that read along another axis than they write: through tiles of shared memory.

A block reads its tile with neighbouring threads along the axis on which loads lie side by side, and computes and writes
it with neighbouring threads along the axis on which the result does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.cuda.maps import memory_order, values_and_places
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.packs import item_bytes, joined, loads_in, offset_of
from agents.playbook.compiler.parameters import Pointers, store
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import variables
from agents.playbook.compiler.terms import Affine, Term, affine, substituted, unravel

SIDE, LARGE_SIDE = 32, 64
"""Elements along a tile's sides, also where they are of two bytes and shared memory has room."""
LEAST = 8
"""Elements along either axis below which caches do as well."""
SHARED_BYTES = 34 * 1024


@dataclass(frozen=True)
class Transpose:
    """A map over loops, some of whose loads lie side by side along another loop than the last."""

    shape: tuple[int, ...]
    index: tuple[Term, ...]
    values: list[Term]
    places: list[Term]
    rows: int
    """The loop along which the loads lie side by side."""
    loads: list[Term]

    @property
    def side(self) -> int:
        """Elements along a tile's sides."""
        small = all(item_bytes(load.data) <= 2 for load in self.loads)
        large = small and min(self.shape[self.rows], self.shape[-1]) >= LARGE_SIDE
        return LARGE_SIDE if large and self._bytes(LARGE_SIDE) <= SHARED_BYTES else SIDE

    def fits(self) -> bool:
        """Return whether a block's shared memory holds the tiles."""
        return self._bytes(SIDE) <= SHARED_BYTES

    def _bytes(self, side: int) -> int:
        return sum(side * (side + 1) * (8 if load.dtype in ("float64", "int64") else 4) for load in self.loads)


def transpose_of(group: Group) -> Transpose | None:
    """Return how a map reads along another axis than it writes; None where it does not."""
    loops = _loops(group)
    shape = tuple(prod(group.shape[axis] for axis in axes) for axes in loops)
    index = variables(shape)
    table = dict[int, Term]()
    for variable, axes in zip(index, loops, strict=True):
        table |= dict(zip(axes, unravel(variable, [group.shape[axis] for axis in axes]), strict=True))
    values, places = values_and_places(group)
    terms = substituted([*values, *places], {group.index[axis]: term for axis, term in table.items()})
    values, places = terms[: len(values)], terms[len(values) :]
    if len(loops) < 2 or not all(_step(affine(place), index[-1]) == 1 for place in places):
        return None
    rows: dict[int, list[Term]] = {}
    for load in loads_in(values):
        parts = affine(offset_of(load))
        if _step(parts, index[-1]) in (0, 1):
            continue
        for loop in range(len(loops) - 1):
            if _step(parts, index[loop]) == 1 and min(shape[loop], shape[-1]) >= LEAST:
                rows.setdefault(loop, []).append(load)
    if not rows:
        return None
    best = max(rows, key=lambda loop: len(rows[loop]))
    found = Transpose(shape, index, values, places, best, rows[best])
    return found if found.fits() else None


def _loops(group: Group) -> list[list[int]]:
    """Return a map's axes in the order of the result's memory, those together that every offset follows as one."""
    values, places = values_and_places(group)
    offsets = [affine(place) for place in places] + [affine(offset_of(load)) for load in loads_in(values)]
    loops: list[list[int]] = []
    for axis in memory_order(group):
        if group.index[axis].op != "index":
            continue
        if loops and all(_are_one(parts, group, loops[-1][-1], axis) for parts in offsets):
            loops[-1].append(axis)
        else:
            loops.append([axis])
    return loops


def _are_one(parts: Affine, group: Group, outer: int, inner: int) -> bool:
    far, near = _step(parts, group.index[outer]), _step(parts, group.index[inner])
    return far is not None and near is not None and far == near * group.shape[inner]


def _step(parts: Affine, index: Term) -> int | None:
    """Return how far an offset moves with a loop index; None where nobody knows."""
    known = all(part is index or not depends(part, index) for part in parts.factors)
    return parts.factors.get(index, 0) if known else None


def in_tiles(group: Group, transpose: Transpose, pointers: Pointers, block: int) -> tuple[list[str], int]:
    """Return the statements of a block, and how many blocks there are."""
    last, side = len(transpose.shape) - 1, transpose.side
    rows, columns = transpose.shape[transpose.rows], transpose.shape[-1]
    down, across = -(-rows // side), -(-columns // side)
    batch = [loop for loop in range(last) if loop != transpose.rows]
    batches = prod(transpose.shape[loop] for loop in batch)
    whole = rows % side == 0 and columns % side == 0
    inside = "" if whole else f"if (i{transpose.rows} < {rows} && i{last} < {columns}) "
    steps = side * side // block
    kinds = [TYPES[load.dtype] for load in transpose.loads]
    reader, texts = _read(transpose, pointers)
    read = [
        *_place(transpose, side, block, along=transpose.rows, under=last),
        *([f"r{n}[u] = 0;" for n in range(len(kinds))] if inside else []),
        f"{inside}{{",
        *statements([*reader, *(f"r{n}[u] = {text};" for n, text in enumerate(texts))], 1),
        "}",
    ]
    keep = [
        *(f"tile{n}[first + u * {block // side}][along] = r{n}[u];" for n in range(len(kinds))),
    ]
    write = [
        *_place(transpose, side, block, along=last, under=transpose.rows),
        f"{inside}{{",
        *statements(_written(group, transpose, pointers), 1),
        "}",
    ]
    return [
        *(f"__shared__ {kind} tile{n}[{side}][{side + 1}];" for n, kind in enumerate(kinds)),
        f"const int column = (int)(blockIdx.x % {across}) * {side};",
        f"const int row = (int)(blockIdx.x / {across} % {down}) * {side};",
        *([f"const idx o = (idx)(blockIdx.x / {across * down});"] if batches > 1 else []),
        f"const int along = (int)(threadIdx.x % {side}), first = (int)(threadIdx.x / {side});",
        *indices(Group(transpose.shape, transpose.index, ()), "o", batch),
        *(f"{kind} r{n}[{steps}];" for n, kind in enumerate(kinds)),
        *repeated(steps, read),
        *repeated(steps, keep),
        "__syncthreads();",
        *repeated(steps, write),
    ], batches * down * across


def _place(transpose: Transpose, side: int, block: int, *, along: int, under: int) -> list[str]:
    """Return the statements that find a thread's element, neighbours along one loop."""
    first = {transpose.rows: "row", len(transpose.shape) - 1: "column"}
    return [
        f"const int under = first + u * {block // side};",
        f"const idx i{along} = {first[along]} + along, i{under} = {first[under]} + under;",
    ]


def _read(transpose: Transpose, pointers: Pointers) -> tuple[list[str], list[str]]:
    """Return the statements that the tiled loads need, and their texts."""
    emitter = Emitter({}, pointers.of)
    places = emitter.emit(*(joined(offset_of(load)) for load in transpose.loads))
    texts = [f"ld({pointers.of(load.data)}, {place})" for load, place in zip(transpose.loads, places, strict=True)]
    guards = [load.args[len(load.data.shape) :] for load in transpose.loads]
    conditions = [emitter.emit(*guard) for guard in guards]
    return emitter.lines, [
        f"{condition[0]} ? {text} : 0" if condition else text for text, condition in zip(texts, conditions, strict=True)
    ]


def _written(group: Group, transpose: Transpose, pointers: Pointers) -> list[str]:
    names = {load: f"tile{n}[along][under]" for n, load in enumerate(transpose.loads)}
    emitter = Emitter(names, pointers.of, "v")
    texts = emitter.emit(*transpose.values, *(joined(place) for place in transpose.places))
    values, places = texts[: len(transpose.values)], texts[len(transpose.values) :]
    written = [
        store(pointers.of(target.tensor), target.tensor, place, value)
        for target, place, value in zip(group.targets, places, values, strict=True)
    ]
    return [*emitter.lines, *written]


def repeated(count: int, body: Sequence[str]) -> list[str]:
    """Return the loop over a thread's elements of a tile, which compilers unroll."""
    return ["#pragma unroll", f"for (int u = 0; u < {count}; ++u) {{", *statements(body, 1), "}"]
