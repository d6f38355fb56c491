"""Tiles for warpgroups that the copy engine brings (TMA), by tensor maps: operands that are matrices as they are given.

A warp of its own asks for tiles, as soon as every other one has multiplied what lay in their place. The maps' swizzle
is that of the tiles which instructions read, and what lies beyond an operand is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from agents.playbook.compiler.cuda.mma import WARPS
from agents.playbook.compiler.cuda.operands import THREADS, Operand
from agents.playbook.compiler.cuda.tensor_copies import ARRIVE_ALONE, BARRIERS, TENSOR_MAP, copy_function
from agents.playbook.compiler.cuda.wgmma import LINES, ROW, Warpgroups
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
    lines: int
    depth: int
    """Lines and depth of all batches, which lie in one matrix."""
    first_line: str
    first_deep: str
    """Beginning of a batch in it, as what is added to a line's number and to a place in depth."""


def matrix_of(operand: Operand) -> Matrix | None:
    """Return the matrix that an operand is as it lies in memory; None where it is none that a tensor map describes."""
    load = bare(operand.factor)
    if load is None or operand.pack == 1 or len(load.args) > len(load.data.shape):
        return None
    place = affine(load.data.offset(load.args))
    group, reduction = operand.group, operand.reduction
    lines = [(group.index[axis], group.shape[axis]) for axis in operand.axes]
    inner = list(zip(group.inner, reduction.extents, strict=True))
    line, deep = _stride(place.factors, lines), _stride(place.factors, inner)
    if line is None or deep is None or place.constant < 0 or any(factor < 0 for factor in place.factors.values()):
        return None
    if min(line, deep) != 1 or max(line, deep) % _UNIT or operand.across != (line == 1):
        return None
    own, batches = {index for index, _ in [*lines, *inner]}, dict(zip(group.index, group.shape, strict=True))
    sizes, names = {line: operand.lines, deep: prod(reduction.extents)}, {line: "", deep: ""}
    for index, factor in place.factors.items():
        if index in own:
            continue
        if index not in batches:
            return None
        along = next(step for step in (max(line, deep), 1) if factor % step == 0)
        sizes[along] += (batches[index] - 1) * factor // along
        names[along] += f" + i{group.index.index(index)} * {factor // along}"
    if place.constant:
        along = next(step for step in (max(line, deep), 1) if place.constant % step == 0)
        sizes[along] += place.constant // along
        names[along] += f" + {place.constant // along}"
    if names[deep] and prod(reduction.extents) % operand.layout.depth:
        return None  # a tile's end would lie in the next batch
    return Matrix(load.data, line, deep, sizes[line], sizes[deep], names[line], names[deep])


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


@dataclass(frozen=True)
class Streamed(Warpgroups):
    """Sums of two warpgroups over tiles that come by tensor maps, asked for by one more warp."""

    @property
    def threads(self) -> int:
        """Return the threads of a block."""
        return THREADS + 32

    @property
    def blocks(self) -> int:
        """Return the blocks of a launch."""
        return self.tiles

    @property
    def tiles(self) -> int:
        """Return the tiles of all results."""
        batches, rows, columns = self.product.sizes(self.group)
        return batches * -(-rows // self.tile[0]) * -(-columns // self.tile[1])

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: tiles, later sums in their place, and two barriers a stage."""
        return super().shared_bytes + self.first.layout.stages * 16

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        return [
            TENSOR_MAP.strip(),
            BARRIERS.strip(),
            ARRIVE_ALONE.strip(),
            copy_function("copy_tile", 2, 1).strip(),
            *self.functions_of_products(),
        ]

    def memory(self) -> list[str]:
        """Return the declarations of tiles, barriers, and a warpgroup's place."""
        stages = self.first.layout.stages
        after = super().shared_bytes
        return [
            *super().memory(),
            f"Barrier* const filled = reinterpret_cast<Barrier*>(pool + {after}), * const freed = filled + {stages};",
            f"if (threadIdx.x == {THREADS}) {{",
            f"    for (int s = 0; s < {stages}; ++s) {{",
            "        init(filled + s, 1);",
            f"        init(freed + s, {WARPS});",
            "    }",
            '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
            "}",
            "__syncthreads();",
        ]

    @property
    def steps(self) -> int:
        """Return the pairs of tiles of a result."""
        return -(-prod(self.first.reduction.extents) // self.first.layout.depth)

    def block(self, origin: list[str], pointers: Pointers) -> list[str]:
        """Return the statements of a block, whose first row and column and batch some statements find."""
        asked, found = [*origin, *self.asked()], [*origin, *self._found(pointers)]
        if self.blocks < self.tiles:
            head = f"for (int tile = blockIdx.x; tile < {self.tiles}; tile += gridDim.x) {{"
            asked, found = (
                [head, *statements([line.replace("blockIdx.x", "tile") for line in lines], 1), "}"]
                for lines in (asked, found)
            )
        return [
            *self.memory(),
            f"if (warp == {WARPS}) {{",
            "    if (lane != 0) return;",
            "    int buffer = 0, phase = 1;",
            *statements(asked, 1),
            "    return;",
            "}",
            *self.sums(),
            *self.multiply(),
            "int buffer = 0, phase = 0;",
            *found,
        ]

    def _found(self, pointers: Pointers) -> list[str]:
        """Return the statements that compute and write the results of a tile."""
        stages, again = self.first.layout.stages, self.blocks < self.tiles
        last = f"buffer == 0 ? {stages - 1} : buffer - 1" if self.under_way else "buffer"
        begun = ["#pragma unroll", f"for (int e = 0; e < {self.columns // 2}; ++e) run[e] = 0;"]
        left = f"if (lane == 0) arrive(freed + (buffer == 0 ? {stages - 1} : buffer - 1), 0);"
        return [
            *(begun if again else []),
            *(["#pragma unroll 1"] if again else []),
            f"for (int t = 0; t < {self.steps}; ++t) {{",
            "    wait(filled + buffer, phase);",
            "    multiply(buffer);",
            f"    const int done = {last};",
            f"    if (lane == 0 && t >= {self.under_way}) arrive(freed + done, 0);",
            f"    {self.turned}",
            "}",
            *self.ended(),
            *([left] if again and self.under_way else []),
            *([] if self.results.from_registers else ["__syncthreads();"]),
            *self.written(pointers),
        ]

    def multiply(self) -> list[str]:
        """Return the function that multiplies a pair of tiles."""
        return ["auto multiply = [&](int buffer) {", *statements(self.multiplied(), 1), "};"]

    @property
    def turned(self) -> str:
        """Return the statement that goes on to the next pair of tiles."""
        return f"if (++buffer == {self.first.layout.stages}) buffer = 0, phase ^= 1;"

    def asked(self) -> list[str]:
        """Return the loop that asks for the pairs of tiles of a result, each when its place is free."""
        size = (self.first.size + self.second.size) * self.first.layout.item_bytes
        body = [
            "wait(freed + buffer, phase);",
            f"const int k0 = t * {self.first.layout.depth};",
            f"expect(filled + buffer, {size});",
            *self.asked_for(),
            self.turned,
        ]
        return [f"for (int t = 0; t < {self.steps}; ++t) {{", *statements(body, 1), "}"]

    def asked_for(self) -> list[str]:
        """Return the statements that ask for the tiles of both operands."""
        both = (self.first, self.second)
        return [line for each in both for line in self._asked(each, f"tile_{each.letter} + buffer * {each.size}")]

    @staticmethod
    def _asked(operand: Operand, tile: str) -> list[str]:
        """Return the statements that ask for an operand's tile, to an address."""
        matrix, name = matrix_of(operand), operand.letter
        assert matrix is not None
        line, deep = f"{operand.line}0{matrix.first_line}", f"k0{matrix.first_deep}"
        if not operand.across:
            return [f"copy_tile({tile}, map_{name}, {deep}, {line}, filled + buffer);"]
        return [
            f"for (int n = 0; n < {operand.width}; n += {ROW})",
            f"    copy_tile({tile} + n * {operand.layout.depth}, map_{name}, {line} + n, {deep}, filled + buffer);",
        ]

    def is_reached(self, pointers: Pointers) -> bool:
        """Return whether maps reach both tensors, which begin where their memory does."""
        matrices = [matrix_of(operand) for operand in (self.first, self.second)]
        return all(matrix is not None and not pointers.beginning(matrix.tensor) for matrix in matrices)

    def maps(self, name: str, pointers: Pointers) -> list[TensorMap]:
        """Return the tensor maps of a launch, those of the first and of the second operand."""
        return [self._map(operand, f"{name}_{operand.letter}", pointers) for operand in (self.first, self.second)]

    def _map(self, operand: Operand, name: str, pointers: Pointers) -> TensorMap:
        matrix = matrix_of(operand)
        assert matrix is not None
        across = operand.across
        return TensorMap(
            name=name,
            tensor=pointers.argument(matrix.tensor) or pointers.workspace,
            box=(str(ROW), str(operand.layout.depth if across else operand.width)),
            dims=(str(matrix.lines), str(matrix.depth)) if across else (str(matrix.depth), str(matrix.lines)),
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
