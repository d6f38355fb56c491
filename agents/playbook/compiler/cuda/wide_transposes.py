"""Transposes of 16-bit elements on the ``cuda`` target: threads read and write packs of eight of them.

A tile's rows in shared memory hold neighbours along the axis that is read, and a thread gathers its pack of the other
axis from eight rows.
"""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.cuda.transposes import LARGE_SIDE, Transpose, repeated
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.packs import Packs, item_bytes, joined, loads_in, offset_of
from agents.playbook.compiler.parameters import Pointers, store

WIDTH = 8
_PER_ROW = LARGE_SIDE // WIDTH
_PITCH = LARGE_SIDE // 2 + 1
"""Words from one row of a tile to the next."""


def is_wide(group: Group, transpose: Transpose) -> bool:
    """Return whether a transpose's loads and results lie in packs of eight elements of two bytes."""
    tensors = [load.data for load in transpose.loads] + [target.tensor for target in group.targets]
    if transpose.side != LARGE_SIDE or any(item_bytes(tensor) != 2 for tensor in tensors):
        return False
    if transpose.loads != loads_in(transpose.values) or any(
        len(load.args) > len(load.data.shape) for load in transpose.loads
    ):
        return False
    read, written = (Packs(transpose.index[loop], WIDTH) for loop in (transpose.rows, -1))
    even = all(transpose.shape[loop] % WIDTH == 0 for loop in (transpose.rows, -1))
    wide = all(read.is_wide_load(load) for load in transpose.loads)
    return even and wide and all(written.is_wide(place) for place in transpose.places)


def in_wide_tiles(group: Group, transpose: Transpose, pointers: Pointers, block: int) -> tuple[list[str], int]:
    """Return the statements of a block, and how many blocks there are."""
    last, side, rows = len(transpose.shape) - 1, LARGE_SIDE, transpose.rows
    down, across = -(-transpose.shape[rows] // side), -(-transpose.shape[last] // side)
    batch = [loop for loop in range(last) if loop != rows]
    batches, step = prod(transpose.shape[loop] for loop in batch), block // _PER_ROW
    parts = [f"i{loop} < {transpose.shape[loop]}" for loop in (rows, last) if transpose.shape[loop] % side]
    inside = f"if ({' && '.join(parts)}) " if parts else ""
    first = {rows: "row", last: "column"}

    def placed(along: int, under: int) -> list[str]:
        return [
            f"const idx i{along} = {first[along]} + along * {WIDTH}, i{under} = {first[under]} + start + u * {step};"
        ]

    emitter = Emitter({}, pointers.of)
    places = emitter.emit(*(joined(offset_of(load)) for load in transpose.loads))
    kinds = [TYPES[load.data.dtype] for load in transpose.loads]
    read = [
        f"r{n}[u] = fetch<{WIDTH}>({pointers.of(load.data)} + {place});"
        for n, (load, place) in enumerate(zip(transpose.loads, places, strict=True))
    ]
    kept = [
        f"__builtin_memcpy(&tile{n}[start + u * {step}][along * {WIDTH // 2}], &r{n}[u], {2 * WIDTH});"
        for n in range(len(kinds))
    ]
    return [
        *(f"__shared__ unsigned tile{n}[{side}][{_PITCH}];" for n in range(len(kinds))),
        f"const int column = (int)(blockIdx.x % {across}) * {side};",
        f"const int row = (int)(blockIdx.x / {across} % {down}) * {side};",
        *([f"const idx o = (idx)(blockIdx.x / {across * down});"] if batches > 1 else []),
        f"const int along = (int)(threadIdx.x % {_PER_ROW}), start = (int)(threadIdx.x / {_PER_ROW});",
        *indices(Group(transpose.shape, transpose.index, ()), "o", batch),
        *(f"pack<{kind}, {WIDTH}> r{n}[{side // step}];" for n, kind in enumerate(kinds)),
        *repeated(side // step, [*placed(rows, last), f"{inside}{{", *statements([*emitter.lines, *read], 1), "}"]),
        *repeated(side // step, kept),
        "__syncthreads();",
        *repeated(
            side // step,
            [
                *placed(last, rows),
                f"{inside}{{",
                *statements(_written(group, transpose, pointers, step), 1),
                "}",
            ],
        ),
    ], batches * down * across


def _written(group: Group, transpose: Transpose, pointers: Pointers, step: int) -> list[str]:
    """Return the statements that compute and store a pack."""
    places = Emitter({}, pointers.of, "q")
    offsets = places.emit(*(joined(place) for place in transpose.places))
    names = {
        load: f"ld(reinterpret_cast<const {TYPES[load.data.dtype]}*>(tile{n}[along * {WIDTH} + k]), start + u * {step})"
        for n, load in enumerate(transpose.loads)
    }
    last = transpose.index[-1]
    emitter = Emitter({**names, last: f"({last.data} + k)"}, pointers.of, "v")
    texts = emitter.emit(*transpose.values)
    tensors = [target.tensor for target in group.targets]
    return [
        *(f"pack<{TYPES[tensor.dtype]}, {WIDTH}> o{n};" for n, tensor in enumerate(tensors)),
        "#pragma unroll",
        f"for (int k = 0; k < {WIDTH}; ++k) {{",
        *statements(
            [*emitter.lines, *(store(f"o{n}.items", tensor, "k", texts[n]) for n, tensor in enumerate(tensors))], 1
        ),
        "}",
        *places.lines,
        *(
            f"put({pointers.of(tensor)} + {offset}, o{n});"
            for n, (tensor, offset) in enumerate(zip(tensors, offsets, strict=True))
        ),
    ]
