"""Products on the ``cuda`` target in tiles of shared memory, for any index maps: matrices and convolutions alike.

The result's axes that only the first factor follows are the rows of a matrix product, those that only the second
follows its columns, and the rest a batch; the reduced axes are its depth. The group's index maps find every element.
While one pair of tiles is multiplied, the next is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler import cuda_mma, cuda_wgmma
from agents.playbook.compiler.cpu import indices
from agents.playbook.compiler.cuda_operands import Layout, Operand
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers, stores
from agents.playbook.compiler.products import Product
from agents.playbook.compiler.tensors import Reduce

SIDE = 16
"""Threads along rows and along columns of a tile on the scalar units."""
RUN = 256
"""Terms that are added in one float32 before they go to the total, where there are many."""
LONGEST_RUN = 4096
"""Terms up to which one float32 sums them all."""
LARGEST_TILE = 128
"""Rows or columns of a tile whose sums fit the registers."""
ENOUGH_BLOCKS = 128
"""Blocks that keep a card busy: smaller tiles are taken where there would be fewer."""
_QUAD = 4
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

    def fitted(self, product: Product, group: Group) -> Tiles:
        """Return tiles as large, or smaller ones where these would leave most of a card idle."""
        batches, rows, columns = product.sizes(group)
        m, n = self.m, self.n
        least = 32 if self.precision else SIDE
        while m > least and m // 2 >= rows:
            m //= 2
        while n > least and n // 2 >= columns:
            n //= 2
        while batches * -(-rows // m) * -(-columns // n) < ENOUGH_BLOCKS and m * n > 2 * 32 * 32:
            m, n = (m // 2, n) if m >= n else (m, n // 2)
        if self.precision and m * n < 2 * 32 * 32:
            m, n = (m, 64) if m <= n else (64, n)
        return replace(self, m=m, n=n)

    def fitted_to_warpgroups(self, product: Product, group: Group) -> Tiles:
        """Return the largest tiles for warpgroups that leave little of a card idle, else the smallest."""
        batches, rows, columns = product.sizes(group)
        sizes = [(m, n) for m, n in _OF_WARPGROUPS if m <= self.m and n <= self.n]
        for m, n in sizes:
            empty = (m > rows and m > sizes[-1][0]) or (n // 2 >= columns and n > sizes[-1][1])
            if not empty and batches * -(-rows // m) * -(-columns // n) >= ENOUGH_BLOCKS:
                return replace(self, m=m, n=n)
        return replace(self, m=sizes[-1][0], n=sizes[-1][1]) if sizes else self


_OF_WARPGROUPS = ((128, 256), (128, 128), (64, 256), (64, 128))


@dataclass(frozen=True)
class Tiled:
    """Statements of a block, the blocks, the dynamic shared memory of each, and the functions that they call."""

    lines: list[str]
    blocks: int
    shared_bytes: int
    functions: list[str]


def tiled(group: Group, reduction: Reduce, product: Product, largest: Tiles, pointers: Pointers) -> Tiled:
    """Return the work of a product's launch."""
    batches, rows, columns = product.sizes(group)
    arithmetic = arithmetic_of(group, reduction, product, largest)
    operands = arithmetic.first, arithmetic.second
    m, n = (operand.width for operand in operands)
    across, down = -(-columns // n), -(-rows // m)
    lines = [
        f"const int n0 = (int)(blockIdx.x % {across}) * {n};",
        f"const int m0 = (int)(blockIdx.x / {across} % {down}) * {m};",
        *([f"const long long o = blockIdx.x / {across * down};"] if batches > 1 else []),
        *indices(group, "o", product.batch),
    ]
    lines += [
        *arithmetic.memory(),
        *(line for operand in operands for line in operand.before()),
        *arithmetic.sums(),
        *_moves(operands, pointers),
        "auto multiply = [&](int buffer) {",
        *statements(arithmetic.multiplied(), 1),
        "};",
        *_loop(arithmetic, prod(reduction.extents)),
        *arithmetic.written(pointers),
    ]
    return Tiled(lines, batches * across * down, arithmetic.shared_bytes, arithmetic.functions())


def arithmetic_of(group: Group, reduction: Reduce, product: Product, largest: Tiles) -> Arithmetic:
    """Return operands in tiles and the units that multiply them."""
    if largest.warpgroups:
        tiles = largest.fitted_to_warpgroups(product, group)
        layout = Layout(tiles.k, tiles.precision, tiles.stages, swizzled=True)
        first = Operand("a", product.first, tuple(product.rows), tiles.m, layout, group, reduction)
        second = Operand("b", product.second, tuple(product.columns), tiles.n, layout, group, reduction)
        if cuda_wgmma.fits(first, second):
            return cuda_wgmma.Warpgroups(group, product, first, second)
        largest = replace(largest, m=min(largest.m, LARGEST_TILE), n=min(largest.n, LARGEST_TILE), k=_WARPS_DEPTH)
    tiles = largest.fitted(product, group)
    layout = Layout(tiles.k, tiles.precision, tiles.stages if tiles.precision else 2)
    first = Operand("a", product.first, tuple(product.rows), tiles.m, layout, group, reduction)
    second = Operand("b", product.second, tuple(product.columns), tiles.n, layout, group, reduction)
    if tiles.precision:
        return cuda_mma.Arithmetic(group, product, first, second)
    return _Scalar(group, product, first, second, prod(reduction.extents))


def _moves(operands: tuple[Operand, Operand], pointers: Pointers) -> list[str]:
    """Return the functions that move tiles: ``start`` copies asynchronously, ``fetch`` reads, ``put`` stores."""
    parts: list[tuple[str, str, Callable[[Operand], list[str]]]] = [
        ("start", "int k0, int buffer", lambda operand: operand.started(pointers)),
        ("fetch", "int k0", lambda operand: operand.fetched(pointers)),
        ("put", "int buffer", Operand.put),
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
    steps = -(-depth // k)
    lines = []
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


@dataclass(frozen=True)
class _Scalar:
    """Sums on the scalar units: a rectangle of results a thread, in packs of up to four neighbours."""

    group: Group
    product: Product
    first: Operand
    second: Operand
    depth: int
    shared_bytes: int = 0
    """Dynamic shared memory: none."""
    ahead: int = 1
    """Pairs of tiles that are read before their time."""

    @staticmethod
    def functions() -> list[str]:
        """Return the device functions that the statements call: none."""
        return []

    @staticmethod
    def before_barrier() -> list[str]:
        """Return what makes copies seen: nothing."""
        return []

    @staticmethod
    def ended() -> list[str]:
        """Return what waits for the last instructions: nothing."""
        return []

    @property
    def counts(self) -> tuple[int, int]:
        """Return rows and columns of a thread's rectangle."""
        return self.first.width // SIDE, self.second.width // SIDE

    @property
    def in_runs(self) -> bool:
        """Return whether sums are put away now and then."""
        return self.depth > LONGEST_RUN

    def memory(self) -> list[str]:
        """Return the declarations of shared memory, aligned for packs of four."""
        lines = []
        for operand in (self.first, self.second):
            size = operand.layout.stages * operand.size // _QUAD
            lines += [
                f"__shared__ float4 quads_{operand.letter}[{size}];",
                f"float* const tile_{operand.letter} = reinterpret_cast<float*>(quads_{operand.letter});",
            ]
        return [*lines, f"const int column = threadIdx.x % {SIDE}, row = threadIdx.x / {SIDE};"]

    def sums(self) -> list[str]:
        """Return the declarations of the sums."""
        rows, columns = self.counts
        lines = [f"float run[{rows}][{columns}] = {{}};"]
        return [*lines, f"float total[{rows}][{columns}] = {{}};"] if self.in_runs else lines

    def multiplied(self) -> list[str]:
        """Return the statements that multiply a pair of tiles."""
        rows, columns = self.counts
        body = [
            f"float a[{rows}], b[{columns}];",
            *self._read(self.first, "a", "row", rows),
            *self._read(self.second, "b", "column", columns),
            *_each(self.counts, ["run[i][j] += a[i] * b[j];"]),
        ]
        return ["#pragma unroll", f"for (int k = 0; k < {self.first.layout.depth}; ++k) {{", *statements(body, 1), "}"]

    def _read(self, operand: Operand, into: str, place: str, count: int) -> list[str]:
        pack = min(_QUAD, count)
        kind = {1: "float", 2: "float2", 4: "float4"}[pack]
        start = f"tile_{operand.letter} + buffer * {operand.size} + k * {operand.pitch} + {place} * {pack}"
        return [
            "#pragma unroll",
            f"for (int g = 0; g < {count // pack}; ++g)",
            f"    *reinterpret_cast<{kind}*>({into} + g * {pack}) =",
            f"        *reinterpret_cast<const {kind}*>({start} + g * {SIDE * pack});",
        ]

    def stepped(self) -> list[str]:
        """Return what is done after each pair of tiles."""
        if not self.in_runs:
            return []
        steps = max(1, RUN // self.first.layout.depth)
        return [f"if (t % {steps} == {steps - 1}) {{", *statements(self._put_away(), 1), "}"]

    def _put_away(self) -> list[str]:
        return _each(self.counts, ["total[i][j] += run[i][j];", "run[i][j] = 0;"])

    def written(self, pointers: Pointers) -> list[str]:
        """Return the statements that write the results."""
        (rows, columns), (_, lines, across) = self.counts, self.product.sizes(self.group)
        inside = [
            *indices(self.group, "m", self.product.rows),
            *indices(self.group, "n", self.product.columns),
            f"const float result = {'total' if self.in_runs else 'run'}[i][j];",
            *stores(self.group, pointers.of, "result"),
        ]
        body = [
            f"const int m = m0 + {_within('row', 'i', rows)}, n = n0 + {_within('column', 'j', columns)};",
            f"if (m < {lines} && n < {across}) {{",
            *statements(inside, 1),
            "}",
        ]
        return [*(self._put_away() if self.in_runs else []), *_each(self.counts, body)]


Arithmetic = _Scalar | cuda_mma.Arithmetic | cuda_wgmma.Warpgroups


def _within(thread: str, item: str, count: int) -> str:
    """Return the place in the tile of one of a thread's rows or columns: packs, each beside those of other threads."""
    pack = min(_QUAD, count)
    return f"{item} / {pack} * {SIDE * pack} + {thread} * {pack} + {item} % {pack}"


def _each(counts: tuple[int, int], inner: list[str]) -> list[str]:
    loop = ["#pragma unroll", f"for (int j = 0; j < {counts[1]}; ++j) {{", *statements(inner, 1), "}"]
    return ["#pragma unroll", f"for (int i = 0; i < {counts[0]}; ++i) {{", *statements(loop, 1), "}"]
