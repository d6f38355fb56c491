"""Products on the ``cuda`` target in tiles of shared memory, for any index maps: matrices and convolutions alike.

The result's axes that only the first factor follows are the rows of a matrix product, those that only the second
follows its columns, and the rest a batch; the reduced axes are its depth. The group's index maps find every element.
While one pair of tiles is multiplied, the next is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.cuda import joint, mma, scalar, streamed, wgmma
from agents.playbook.compiler.cuda.gathers import Gathered
from agents.playbook.compiler.cuda.operands import THREADS, Layout, Operand
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.packs import item_bytes
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import Product, condition_of_use
from agents.playbook.compiler.shapes_of_work import counted
from agents.playbook.compiler.tensors import Reduce
from cupilot.domain.tensor_map import TensorMap

LARGEST_TILE = 128
"""Rows or columns of a tile whose sums fit the registers."""
ENOUGH_BLOCKS = 128
"""Blocks that keep a card busy: smaller tiles are taken where there would be fewer."""
_WARPS_DEPTH = 32
"""Depth of tiles for warps, where operands do not lie as warpgroups read them."""


@dataclass(frozen=True)
class Tiles:
    """Sizes of a block's tile, and the units that multiply."""

    m: int
    n: int
    k: int
    precision: str = ""
    """Type that operands are rounded to for tensor cores, as the technique has it; empty for the scalar units."""
    stages: int = 2
    """Pairs of tiles in shared memory; more than two are copied asynchronously."""
    warpgroups: bool = False
    """True if warpgroup instructions multiply where operands lie as these read them."""
    by_maps: bool = False
    """True if tiles come by tensor maps where operands lie so."""
    online: bool = False
    """True if attention is one launch, with a softmax whose maximum and sum run along."""
    filtering: tuple[int, int] | None = None
    """Outputs and taps along columns of convolutions by minimal filtering; None for direct ones."""

    def fitted(self, product: Product, group: Group) -> Tiles:
        """Return tiles as large, or smaller ones where these would leave most of a card idle."""
        batches, rows, columns = product.sizes(group)
        m, n = self.m, self.n
        least = 32 if self.precision else 16
        while m > least and m // 2 >= rows:
            m //= 2
        while n > least and n // 2 >= columns:
            n //= 2
        while batches * -(-rows // m) * -(-columns // n) < ENOUGH_BLOCKS and m * n > 2 * 32 * 32:
            m, n = (m // 2, n) if m >= n else (m, n // 2)
        if self.precision and m * n < 2 * 32 * 32:
            m, n = (m, 64) if m <= n else (64, n)
        return replace(self, m=m, n=n)

    def shaped(self, product: Product, group: Group) -> Tiles:
        """Return tiles of about as many results whose narrow side is left empty least."""
        _, rows, columns = product.sizes(group)
        if columns <= rows:
            n = _width(columns, self.n)
            return replace(self, m=_power(self.m * self.n // n), n=n)
        m = _width(rows, self.m)
        return replace(self, m=m, n=_power(self.m * self.n // m))

    def fitted_to_warpgroups(self, product: Product, group: Group) -> Tiles:
        """Return the largest tiles for warpgroups that leave little of a card idle, else the smallest."""
        batches, rows, columns = product.sizes(group)
        sizes = [(m, n) for m, n in _OF_WARPGROUPS if m <= self.m and n <= self.n]
        for m, n in sizes:
            empty = (m > rows and m > sizes[-1][0]) or (n // 2 >= columns and n > sizes[-1][1])
            if not empty and batches * -(-rows // m) * -(-columns // n) >= ENOUGH_BLOCKS:
                return replace(self, m=m, n=n)
        return replace(self, m=sizes[-1][0], n=sizes[-1][1]) if sizes else self


def _width(lines: int, most: int) -> int:
    """Return the width of tiles that make up so many lines with little left empty: wide ones do more with a reading."""
    widths = [width for width in _WIDTHS if width <= most]
    return min(widths, key=lambda width: -(-lines // width) * width * (1 / 32 + 1 / width))


def _power(number: int) -> int:
    """Return the largest power of two that is not larger, nor larger than the longest side of a tile."""
    return int(min(_LONGEST_SIDE, 1 << number.bit_length() - 1))


_WIDTHS = (16, 24, 32, 48, 64, 96, 128)
_LONGEST_SIDE = 512
_OF_WARPGROUPS = ((128, 256), (128, 128), (64, 256), (64, 128))
_OF_TWO = (128, 128)
"""Rows and columns of tiles of which a multiprocessor has room for two blocks."""
_DEPTH_OF_OPERATION = 256
"""Depth whose products take about as long as one operation of a result, or two bytes of it."""


@dataclass(frozen=True)
class Tiled:
    """Statements of a block, the blocks, the dynamic shared memory of each, and the functions that they call."""

    lines: list[str]
    blocks: int
    shared_bytes: int
    functions: list[str]
    resident: int = 1
    """Blocks of a multiprocessor, whose registers they share."""
    threads: int = THREADS
    """Threads of a block."""
    maps: Callable[[str, Pointers], list[TensorMap]] | None = None
    """Tensor maps that the statements name ``map_a`` and ``map_b``, of a launch of this name."""


def tiled(group: Group, reduction: Reduce, product: Product, largest: Tiles, pointers: Pointers) -> Tiled:
    """Return the work of a product's launch."""
    arithmetic = arithmetic_of(group, reduction, product, largest)
    if isinstance(arithmetic, streamed.Streamed) and not arithmetic.is_reached(pointers):
        arithmetic = arithmetic_of(group, reduction, product, replace(largest, by_maps=False))
    batches, rows, columns = arithmetic.product.sizes(group)
    operands = arithmetic.first, arithmetic.second
    widths = tuple(operand.width for operand in operands)
    m, n = arithmetic.tile if isinstance(arithmetic, wgmma.Warpgroups) else widths
    across, down = -(-columns // n), -(-rows // m)
    origin = [
        f"const int n0 = (int)(blockIdx.x % {across}) * {n};",
        f"const int m0 = (int)(blockIdx.x / {across} % {down}) * {m};",
        *([f"const long long o = blockIdx.x / {across * down};"] if batches > 1 else []),
        *indices(group, "o", product.batch),
    ]
    blocks, size, functions = batches * across * down, arithmetic.shared_bytes, arithmetic.functions()
    if isinstance(arithmetic, streamed.Streamed):
        lines = arithmetic.block(origin, pointers)
        made = Tiled(lines, arithmetic.blocks, size, functions, arithmetic.resident)
        return replace(made, threads=arithmetic.threads, maps=arithmetic.maps)
    lines = [
        *origin,
        *arithmetic.memory(),
        *(line for operand in operands for line in operand.before(pointers)),
        *arithmetic.sums(),
        *_moves(operands, pointers),
        "auto multiply = [&](int buffer) {",
        *statements(arithmetic.multiplied(), 1),
        "};",
        *_loop(arithmetic, prod(reduction.extents)),
        *arithmetic.written(pointers),
    ]
    return Tiled(lines, blocks, size, functions, arithmetic.resident)


def arithmetic_of(group: Group, reduction: Reduce, product: Product, largest: Tiles) -> Arithmetic:
    """Return operands in tiles and the units that multiply them."""
    if isinstance(group, joint.Joint):
        made = joint.joint_block(group, largest.precision)
        assert made is not None
        return made
    if largest.warpgroups:
        own, tiles, resident = _for_warpgroups(product, group, reduction, largest)
        layout = Layout(tiles.k, tiles.precision, tiles.stages, swizzled=True)
        first = Operand("a", own.first, tuple(own.rows), tiles.m, layout, group, reduction)
        second = Operand("b", own.second, tuple(own.columns), tiles.n, layout, group, reduction)
        if wgmma.fits(first, second):
            if largest.by_maps and condition_of_use(group) is None and streamed.fits(first, second):
                return streamed.Streamed(group, own, first, second, resident)
            return wgmma.Warpgroups(group, own, first, second, resident)
        largest = replace(largest, m=min(largest.m, LARGEST_TILE), n=min(largest.n, LARGEST_TILE), k=_WARPS_DEPTH)
    if not largest.precision:
        return _on_scalar_units(group, reduction, product, largest)
    tiles = largest.fitted(product, group)
    layout = Layout(tiles.k, tiles.precision, tiles.stages)
    first = Operand("a", product.first, tuple(product.rows), tiles.m, layout, group, reduction)
    second = Operand("b", product.second, tuple(product.columns), tiles.n, layout, group, reduction)
    return mma.Arithmetic(group, product, first, second)


def _on_scalar_units(group: Group, reduction: Reduce, product: Product, largest: Tiles) -> scalar.Scalar:
    """Return tiles for scalar units, of widths that fit the product where its operands are found at any width."""
    layout = Layout(largest.k, "", 2)
    first = Gathered("a", product.first, tuple(product.rows), largest.m, layout, group, reduction)
    second = Gathered("b", product.second, tuple(product.columns), largest.n, layout, group, reduction)
    if first.is_free and second.is_free:
        largest = largest.shaped(product, group)
    tiles = largest.fitted(product, group)
    first, second = replace(first, width=tiles.m), replace(second, width=tiles.n)
    return scalar.Scalar(group, product, first, second, prod(reduction.extents))


def _for_warpgroups(product: Product, group: Group, reduction: Reduce, largest: Tiles) -> tuple[Product, Tiles, int]:
    """Return a product with its factors in the better order for warpgroups, tiles, and the blocks of a multiprocessor.

    Two blocks hide each other's results where these take long beside the sums; one alone has larger tiles, or more
    stages.
    """
    tiles = [(each, largest.fitted_to_warpgroups(each, group)) for each in (product, product.turned)]
    own, found = max(tiles, key=lambda item: _useful(item[0], item[1], group))
    small = replace(found, m=min(found.m, _OF_TWO[0]), n=min(found.n, _OF_TWO[1]), stages=wgmma.STAGES_OF_TWO)
    batches, rows, columns = product.sizes(group)
    blocks = batches * -(-rows // small.m) * -(-columns // small.n)
    depth, work = prod(reduction.extents), counted([each.value for each in group.targets])
    work += sum(item_bytes(each.tensor) // 2 for each in group.targets)
    even = (small.m, small.n) == _OF_TWO and min(rows, columns) >= LARGEST_TILE and blocks >= 3 * ENOUGH_BLOCKS
    even = even and all(each.inside is None for each in group.targets)
    if even and depth < _DEPTH_OF_OPERATION * (1 + work):
        return product, small, 2
    return own, replace(found, stages=wgmma.stages_of(found.m, found.n, depth)), 1


def _useful(product: Product, tiles: Tiles, group: Group) -> int:
    """Return the results of a tile that exist."""
    _, rows, columns = product.sizes(group)
    return min(tiles.m, rows) * min(tiles.n, columns)


def _moves(operands: tuple[Operand, Operand], pointers: Pointers) -> list[str]:
    """Return the functions that move tiles: ``start`` copies asynchronously, ``fetch`` reads, ``put`` stores."""
    parts: list[tuple[str, str, Callable[[Operand], list[str]]]] = [
        ("start", "int k0, int buffer", lambda operand: operand.started(pointers)),
        ("fetch", "int k0", lambda operand: operand.fetched(pointers)),
        ("put", "int buffer", lambda operand: operand.put()),
    ]
    lines = [line for operand in operands for line in operand.registers()]
    for name, parameters, text in parts:
        body = [line for operand in operands if operand.is_copied == (name == "start") for line in text(operand)]
        if body:
            lines += [f"auto {name} = [&]({parameters}) {{", *statements(body, 1), "};"]
    return lines


def _loop(arithmetic: Arithmetic, depth: int) -> list[str]:
    """Return the loop over pairs of tiles.

    A buffer is written again only after the barrier that follows its last reading. What goes through registers is one
    pair ahead.
    """
    operands = arithmetic.first, arithmetic.second
    copied, fetched = (any(operand.is_copied == way for operand in operands) for way in (True, False))
    stages, k, ahead = operands[0].layout.stages, operands[0].layout.depth, arithmetic.ahead
    lines, steps = _needed(arithmetic, -(-depth // k))
    if copied:
        lines += [
            f"for (int t = 0; t < {ahead}; ++t) {{",
            f"    if (t < {steps}) start(t * {k}, t);",
            "    commit_copies();",
            "}",
        ]
    if fetched:
        lines += ["fetch(0);", "put(0);"]
    body = [
        *([f"wait_for_copies<{ahead - 1}>();"] if copied else []),
        *arithmetic.before_barrier(),
        "__syncthreads();",
        *(
            [
                f"if (t + {ahead} < {steps}) start((t + {ahead}) * {k}, (t + {ahead}) % {stages});",
                "commit_copies();",
            ]
            if copied
            else []
        ),
        *([f"if (t + 1 < {steps}) fetch((t + 1) * {k});"] if fetched else []),
        f"multiply(t % {stages});",
        *arithmetic.stepped(),
        *([f"if (t + 1 < {steps}) put((t + 1) % {stages});"] if fetched else []),
    ]
    lines += [f"for (int t = 0; t < {steps}; ++t) {{", *statements(body, 1), "}"]
    return [*lines, *(["wait_for_copies<0>();"] if copied else []), *arithmetic.ended(), "__syncthreads();"]


def _needed(arithmetic: Arithmetic, steps: int) -> tuple[list[str], str]:
    """Return the number of pairs of tiles: none for blocks no element of which takes its sum, as beyond a triangle."""
    group, product = arithmetic.group, arithmetic.product
    condition = condition_of_use(group)
    if condition is None:
        return [], str(steps)
    m, n = arithmetic.first.width, arithmetic.second.width
    _, rows, columns = product.sizes(group)
    emitter = Emitter({}, str, "u")
    (used,) = emitter.emit(condition)
    inside = [
        *indices(group, "m", product.rows),
        *indices(group, "n", product.columns),
        *emitter.lines,
        f"used = {used};",
    ]
    body = [
        f"const int m = m0 + e / {n}, n = n0 + e % {n};",
        f"if (m < {rows} && n < {columns}) {{",
        *statements(inside, 1),
        "}",
    ]
    return [
        "bool used = false;",
        f"for (int e = threadIdx.x; e < {m * n} && !used; e += {THREADS}) {{",
        *statements(body, 1),
        "}",
        f"const int steps = __syncthreads_or(used) ? {steps} : 0;",
    ], "steps"


Arithmetic = scalar.Scalar | mma.Arithmetic | wgmma.Warpgroups
