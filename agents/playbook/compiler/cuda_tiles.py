"""Products on the ``cuda`` target in tiles of shared memory, for any index maps: matrices and convolutions alike.

The result's axes that only the first factor follows are the rows of a matrix product, those that only the second
follows its columns, and the rest a batch; the reduced axes are its depth. The group's index maps find every element.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.cpu import indices
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers, stores
from agents.playbook.compiler.shapes_of_work import depends
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, affine

SIDE = 16
"""Threads along rows and along columns of a tile."""
LEAST = 16
"""Rows, columns and depth below which tiles are mostly empty."""
LARGEST_TILE = 128
"""Rows or columns of a tile whose sums fit the registers."""
RUN = 256
"""Terms that are added in float32 before they go to the total."""


@dataclass(frozen=True)
class Tiles:
    """Sizes of a block's tile."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Product:
    """A reduction seen as a matrix product."""

    first: Term
    second: Term
    batch: list[int]
    rows: list[int]
    columns: list[int]

    def sizes(self, group: Group) -> tuple[int, int, int]:
        """Return batches, rows and columns."""
        batches, rows, columns = (
            prod(group.shape[axis] for axis in axes) for axes in (self.batch, self.rows, self.columns)
        )
        return batches, rows, columns


def product_of(group: Group) -> Product | None:
    """Return how a group is a matrix product of some size; None where it is none."""
    source, argument = group.source, group.argument
    if not isinstance(source, Reduce) or source.kind != "sum" or source.value != "float32" or argument is None:
        return None
    if argument.op != "mul" or prod(source.extents) < LEAST:
        return None
    first, second = argument.args
    axes: dict[tuple[bool, bool], list[int]] = {(a, b): [] for a in (False, True) for b in (False, True)}
    for axis, index in enumerate(group.index):
        key = (depends(first, index), depends(second, index)) if index.op == "index" else (True, True)
        axes[key].append(axis)
    batch = sorted([*axes[True, True], *axes[False, False]])
    product = Product(first, second, batch, axes[True, False], axes[False, True])
    _, rows, columns = product.sizes(group)
    return product if rows >= LEAST and columns >= LEAST else None


def body(group: Group, reduction: Reduce, product: Product, tiles: Tiles, pointers: Pointers) -> tuple[list[str], int]:
    """Return the statements of a block, and how many blocks there are."""
    batches, rows, columns = product.sizes(group)
    across, down = -(-columns // tiles.n), -(-rows // tiles.m)
    depth = prod(reduction.extents)
    per_thread = tiles.m // SIDE, tiles.n // SIDE
    steps = max(1, RUN // tiles.k)
    lines = [
        f"__shared__ float tile_a[{tiles.k}][{tiles.m} + 1], tile_b[{tiles.k}][{tiles.n} + 1];",
        f"const int n0 = (int)(blockIdx.x % {across}) * {tiles.n};",
        f"const int m0 = (int)(blockIdx.x / {across} % {down}) * {tiles.m};",
        *([f"const long long o = blockIdx.x / {across * down};"] if batches > 1 else []),
        *indices(group, "o", product.batch),
        f"const int column = threadIdx.x % {SIDE}, row = threadIdx.x / {SIDE};",
        f"float run[{per_thread[0]}][{per_thread[1]}] = {{}}, total[{per_thread[0]}][{per_thread[1]}] = {{}};",
        "int steps = 0;",
        f"for (int k0 = 0; k0 < {depth}; k0 += {tiles.k}) {{",
        *statements(
            [
                *_filled(group, reduction, (product.first, product.rows, "m", rows, tiles.m), tiles.k, pointers),
                *_filled(group, reduction, (product.second, product.columns, "n", columns, tiles.n), tiles.k, pointers),
                "__syncthreads();",
                *_multiplied(tiles),
                "__syncthreads();",
                f"if (++steps == {steps}) {{",
                *statements([*_added(per_thread), "steps = 0;"], 1),
                "}",
            ],
            1,
        ),
        "}",
        *_added(per_thread),
        *_written(group, product, per_thread, pointers),
    ]
    return lines, batches * across * down


Side = tuple[Term, list[int], str, int, int]
"""A factor, the axes that it follows, its offset's name, the elements along it, and its tile's width."""


def _filled(group: Group, reduction: Reduce, side: Side, depth: int, pointers: Pointers) -> list[str]:
    """Return the statements that read one factor's tile, neighbours in memory by neighbouring threads."""
    factor, axes, name, size, width = side
    emitter = Emitter({}, pointers.of)
    (value,) = emitter.emit(factor)
    across = _follows(factor, group.index[axes[-1]]) or not _follows(factor, group.inner[-1])
    place = [
        f"const int along = {f'e % {width}' if across else f'e / {depth}'};",
        f"const int under = {f'e / {width}' if across else f'e % {depth}'};",
        f"const int {name} = {name}0 + along, r = k0 + under;",
        "float value = 0;",
        f"if ({name} < {size} && r < {prod(reduction.extents)}) {{",
        *statements(
            [*indices(group, name, axes), *inner_indices(group, reduction), *emitter.lines, f"value = {value};"], 1
        ),
        "}",
        f"tile_{'a' if name == 'm' else 'b'}[under][along] = value;",
    ]
    return [
        f"for (int e = threadIdx.x; e < {width * depth}; e += {SIDE * SIDE}) {{",
        *statements(place, 1),
        "}",
    ]


def inner_indices(group: Group, reduction: Reduce) -> list[str]:
    """Return the statements that find the indices on the reduced axes from ``r``, their common offset."""
    lines = []
    step = prod(reduction.extents)
    for axis, extent in enumerate(reduction.extents):
        step //= extent
        if group.inner[axis].op != "const":
            quotient = "r" if step == 1 else f"r / {step}"
            lines.append(f"const idx r{axis} = (idx)({quotient if axis == 0 else f'({quotient}) % {extent}'});")
    return lines


def _follows(factor: Term, index: Term) -> bool:
    """Return whether a factor's loads move by one element with an index."""
    offsets = (term.data.offset(term.args[: len(term.data.shape)]) for term in _loads(factor) if index.op == "index")
    return any(affine(offset).factors.get(index) == 1 for offset in offsets)


def _loads(factor: Term) -> list[Term]:
    found, stack, seen = [], [factor], set()
    while stack:
        term = stack.pop()
        if term not in seen:
            seen.add(term)
            stack.extend(term.args)
            found += [term] if term.op == "load" else []
    return found


def _multiplied(tiles: Tiles) -> list[str]:
    rows, columns = tiles.m // SIDE, tiles.n // SIDE
    return [
        "#pragma unroll",
        f"for (int k = 0; k < {tiles.k}; ++k) {{",
        *statements(
            [
                f"float a[{rows}], b[{columns}];",
                "#pragma unroll",
                f"for (int i = 0; i < {rows}; ++i) a[i] = tile_a[k][row + i * {SIDE}];",
                "#pragma unroll",
                f"for (int j = 0; j < {columns}; ++j) b[j] = tile_b[k][column + j * {SIDE}];",
                *_each((rows, columns), ["run[i][j] += a[i] * b[j];"]),
            ],
            1,
        ),
        "}",
    ]


def _each(counts: tuple[int, int], inner: list[str]) -> list[str]:
    loop = ["#pragma unroll", f"for (int j = 0; j < {counts[1]}; ++j) {{", *statements(inner, 1), "}"]
    return ["#pragma unroll", f"for (int i = 0; i < {counts[0]}; ++i) {{", *statements(loop, 1), "}"]


def _added(counts: tuple[int, int]) -> list[str]:
    return _each(counts, ["total[i][j] += run[i][j];", "run[i][j] = 0;"])


def _written(group: Group, product: Product, counts: tuple[int, int], pointers: Pointers) -> list[str]:
    _, rows, columns = product.sizes(group)
    inside = [
        *indices(group, "m", product.rows),
        *indices(group, "n", product.columns),
        "const float result = total[i][j];",
        *stores(group, pointers.of, "result"),
    ]
    lines = [
        f"const int m = m0 + row + i * {SIDE}, n = n0 + column + j * {SIDE};",
        f"if (m < {rows} && n < {columns}) {{",
        *statements(inside, 1),
        "}",
    ]
    return _each(counts, lines)
