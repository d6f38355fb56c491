"""Tiles for warpgroups that the copy engine brings (TMA), by tensor maps: operands that are matrices as they are given.

One thread asks for tiles, as soon as every warp has multiplied what lay in their place. Blocks of a cluster that need
the same tile ask for a part each, and every part comes to all of them. The maps' swizzle is that of the tiles which
instructions read, and what lies beyond an operand is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.cuda.mma import WARPS
from agents.playbook.compiler.cuda.operands import THREADS, Operand
from agents.playbook.compiler.cuda.tensor_copies import ARRIVE_ALONE, BARRIERS, CLUSTER, copy_function
from agents.playbook.compiler.cuda.wgmma import FUNCTIONS, LINES, ROW, Warpgroups, function
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import bare
from agents.playbook.compiler.tensors import Tensor
from agents.playbook.compiler.terms import Term, affine
from cupilot.domain.tensor_map import L2Promotion, MapElement, Swizzle, TensorMap

_ELEMENTS = {"half": MapElement.FLOAT16, "bfloat16": MapElement.BFLOAT16}
_UNIT = 8
"""16-bit elements of the 16 bytes to whose multiples rows are aligned."""


@dataclass(frozen=True)
class Matrix:
    """A tensor as a matrix: elements from one line to the next, and from one place in depth to the next."""

    tensor: Tensor
    line: int
    deep: int


def matrix_of(operand: Operand) -> Matrix | None:
    """Return the matrix that an operand is as it lies in memory; None where it is none that a tensor map describes."""
    load = bare(operand.factor)
    if load is None or operand.pack == 1 or len(load.args) > len(load.data.shape):
        return None
    place = affine(load.data.offset(load.args))
    group, reduction = operand.group, operand.reduction
    lines = [(group.index[axis], group.shape[axis]) for axis in operand.axes]
    line, deep = (_stride(place.factors, axes) for axes in (
        lines, list(zip(group.inner, reduction.extents, strict=True))))  # fmt: skip
    known = {index for index, _ in lines} | set(group.inner)
    if line is None or deep is None or place.constant or any(term not in known for term in place.factors):
        return None
    if sorted((line, deep))[0] != 1 or max(line, deep) % _UNIT:
        return None
    return Matrix(load.data, line, deep) if operand.across == (line == 1) else None


def _stride(factors: dict[Term, int], axes: list[tuple[Term, int]]) -> int | None:
    """Return how far apart neighbours lie on axes that are one in memory; None where they are not."""
    step = None
    for index, extent in reversed(axes):
        if index.op != "index":
            continue
        own = factors.get(index, 0)
        if step is not None and own != step[0] * step[1]:
            return None
        step = (step[0], step[1] * extent) if step is not None else (own, extent)
    return None if step is None else step[0]


def cluster_of(first: Operand, second: Operand, blocks: int) -> tuple[int, int]:
    """Return the blocks below each other and side by side of a cluster: those that need the fewest tiles of all."""
    shapes = [(down, blocks // down) for down in range(1, blocks + 1) if blocks % down == 0]
    fitting = [
        (down, beside)
        for down, beside in shapes
        if _shares(first, beside) and _shares(second, down) and _goes_into(first, down) and _goes_into(second, beside)
    ]
    return min(fitting, key=lambda shape: first.width / shape[1] + second.width / shape[0], default=(1, 1))


def _shares(operand: Operand, blocks: int) -> bool:
    """Return whether so many blocks can bring a part of a tile each."""
    return blocks == 1 or operand.width % (blocks * (ROW if operand.across else _UNIT)) == 0


def _goes_into(operand: Operand, blocks: int) -> bool:
    return -(-operand.lines // operand.width) % blocks == 0


@dataclass(frozen=True)
class Streamed(Warpgroups):
    """Sums of two warpgroups over tiles that come by tensor maps, asked for by one more warp."""

    cluster: tuple[int, int] = (1, 1)
    """Blocks of a cluster below each other, which share tiles of columns, and side by side, with those of rows."""

    @property
    def threads(self) -> int:
        """Return the threads of a block."""
        return THREADS + 32

    @property
    def blocks(self) -> int:
        """Return the blocks of a cluster."""
        return prod(self.cluster)

    @property
    def _tile_bytes(self) -> int:
        layout = self.first.layout
        return layout.stages * (self.first.size + self.second.size) * layout.item_bytes

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: tiles, later sums in their place, and two barriers a stage."""
        return max(self._tile_bytes, self.results.shared_bytes) + self.first.layout.stages * 16

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        down, beside = self.cluster
        return [
            BARRIERS.strip(),
            (CLUSTER if self.blocks > 1 else ARRIVE_ALONE).strip(),
            *([copy_function("copy_tile", 2).strip()] if 1 in (down, beside) else []),
            *([copy_function("copy_shared_tile", 2, shared=True).strip()] if self.blocks > 1 else []),
            FUNCTIONS.strip(),
            function(self.first.layout.precision, self.columns, self.transposed),
        ]

    def origin(self, across: int, down: int, *, batched: bool) -> list[str]:
        """Return the statements that find the first row and column of a block, and its batch."""
        if self.blocks == 1:
            return [
                f"const int n0 = (int)(blockIdx.x % {across}) * {self.second.width};",
                f"const int m0 = (int)(blockIdx.x / {across} % {down}) * {self.first.width};",
                *([f"const long long o = blockIdx.x / {across * down};"] if batched else []),
            ]
        below, beside = self.cluster
        across, down = across // beside, down // below
        return [
            f"const int rank = (int)(blockIdx.x % {self.blocks}), cluster = (int)(blockIdx.x / {self.blocks});",
            f"const int rank_m = rank % {below}, rank_n = rank / {below};",
            f"const int n0 = (cluster % {across} * {beside} + rank_n) * {self.second.width};",
            f"const int m0 = (cluster / {across} % {down} * {below} + rank_m) * {self.first.width};",
            *([f"const long long o = cluster / {across * down};"] if batched else []),
        ]

    def memory(self) -> list[str]:
        """Return the declarations of tiles, barriers, and a warpgroup's place."""
        stages, sharing = self.first.layout.stages, sum(self.cluster) - 1
        after = max(self._tile_bytes, self.results.shared_bytes)
        return [
            *super().memory(),
            f"Barrier* const filled = reinterpret_cast<Barrier*>(pool + {after}), * const freed = filled + {stages};",
            f"if (threadIdx.x == {THREADS}) {{",
            f"    for (int s = 0; s < {stages}; ++s) {{",
            "        init(filled + s, 1);",
            f"        init(freed + s, {sharing * WARPS});",
            "    }",
            '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
            "}",
            "cluster_sync();" if self.blocks > 1 else "__syncthreads();",
        ]

    def loop(self, depth: int) -> list[str]:
        """Return the loop over pairs of tiles: one warp asks for them, the others multiply."""
        layout = self.first.layout
        stages, steps = layout.stages, -(-depth // layout.depth)
        size = (self.first.size + self.second.size) * layout.item_bytes
        asked = [line for operand in (self.first, self.second) for line in self._asked(operand)]
        turned = f"if (++buffer == {stages}) buffer = 0, phase ^= 1;"
        last = f"buffer == 0 ? {stages - 1} : buffer - 1" if self.under_way else "buffer"
        sharing = sum(self.cluster) - 1
        return [
            f"if (warp == {WARPS}) {{",
            "    if (lane != 0) return;",
            "    int buffer = 0, phase = 1;",
            f"    for (int t = 0; t < {steps}; ++t) {{",
            f"        if (t >= {stages}) wait(freed + buffer, phase);",
            f"        const int k0 = t * {layout.depth};",
            f"        expect(filled + buffer, {size});",
            *statements(asked, 2),
            f"        {turned}",
            "    }",
            "    return;",
            "}",
            *self._sharing(),
            "int buffer = 0, phase = 0;",
            f"for (int t = 0; t < {steps}; ++t) {{",
            "    wait(filled + buffer, phase);",
            "    multiply(buffer);",
            f"    const int done = {last};",
            f"    if (lane < {sharing} && t >= {self.under_way} && t < {steps - stages + self.under_way})",
            f"        arrive(freed + done, {self._block});",
            f"    {turned}",
            "}",
            *self.ended(),
            "__syncthreads();",
        ]

    @property
    def _block(self) -> str:
        return "sharing" if self.blocks > 1 else "0"

    def _sharing(self) -> list[str]:
        """Return the declaration of the block, of those that share tiles with this one, that a lane reports to."""
        below = self.cluster[0]
        if self.blocks == 1:
            return []
        column = f"rank_n * {below} + lane"
        row = f"(lane - {below} + (lane - {below} >= rank_n)) * {below} + rank_m"
        return [f"const int sharing = lane < {below} ? {column} : {row};"]

    def _asked(self, operand: Operand) -> list[str]:
        """Return the statements that ask for an operand's tile, or for this block's part of it."""
        name, line, width = operand.letter, f"{operand.line}0", operand.width
        below, beside = self.cluster
        tile, copy, end = f"tile_{name} + buffer * {operand.size}", "copy_tile", ""
        part, parts = ("rank_n", beside) if name == "a" else ("rank_m", below)
        if parts > 1:
            width //= parts
            line, copy = f"{line} + {part} * {width}", "copy_shared_tile"
            tile = f"{tile} + {part} * {width * operand.layout.depth}"
            blocks = sum(1 << block * below for block in range(beside)) if name == "a" else (1 << below) - 1
            end = f", {blocks} << rank_m" if name == "a" else f", {blocks} << rank_n * {below}"
        if not operand.across:
            return [f"{copy}({tile}, map_{name}, k0, {line}, filled + buffer{end});"]
        return [
            f"for (int n = 0; n < {width}; n += {ROW})",
            f"    {copy}({tile} + n * {operand.layout.depth}, map_{name}, {line} + n, k0, filled + buffer{end});",
        ]

    def is_reached(self, pointers: Pointers) -> bool:
        """Return whether maps reach both tensors, which begin where their memory does."""
        matrices = [matrix_of(operand) for operand in (self.first, self.second)]
        return all(matrix is not None and not pointers.beginning(matrix.tensor) for matrix in matrices)

    def maps(self, name: str, pointers: Pointers) -> list[TensorMap]:
        """Return the tensor maps of a launch, those of the first and of the second operand."""
        return [self._map(operand, f"{name}_{operand.letter}", pointers) for operand in (self.first, self.second)]

    def _map(self, operand: Operand, name: str, pointers: Pointers) -> TensorMap:
        matrix, depth = matrix_of(operand), prod(operand.reduction.extents)
        assert matrix is not None
        lines = operand.width // self.cluster[1 if operand.letter == "a" else 0]
        across = operand.across
        return TensorMap(
            name=name,
            tensor=pointers.argument(matrix.tensor) or pointers.workspace,
            box=(str(ROW), str(operand.layout.depth if across else lines)),
            dims=(str(operand.lines), str(depth)) if across else (str(depth), str(operand.lines)),
            strides=(str(matrix.deep if across else matrix.line),),
            dtype=_ELEMENTS[operand.layout.precision],
            swizzle=Swizzle.B128,
            l2_promotion=L2Promotion.B256,
        )


def fits(first: Operand, second: Operand) -> bool:
    """Return whether tensor maps describe both operands, in tiles that instructions read."""
    if first.width % LINES or None in (matrix_of(first), matrix_of(second)):
        return False
    return first.layout.depth == ROW and second.width * (first.width // LINES) % (2 * ROW) == 0
