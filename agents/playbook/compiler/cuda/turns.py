"""Warpgroups that take turns: one multiplies while the other writes the results of the tile before.

A block stays for several tiles of the result. The copy engine brings operands for one after the other, and each
warpgroup takes every second one. It waits for operands only when the other one has waited for all of its own, since a
barrier does not tell a phase from the next but one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from agents.playbook.compiler.cuda.mma import WARPS
from agents.playbook.compiler.cuda.streamed import Streamed
from agents.playbook.compiler.cuda.wgmma import LINES, WARPGROUPS, function_name, stages_of
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.parameters import Pointers

SIDE = 128
"""Rows and columns of a tile whose sums fit the registers of a warpgroup."""
BLOCKS = 132
"""Multiprocessors of an H100 or H200; on a smaller card some blocks follow others."""


@dataclass(frozen=True)
class Turns(Streamed):
    """Sums of warpgroups that have tiles of their own."""

    @property
    def columns(self) -> int:
        """Return the columns that one instruction multiplies."""
        return self.second.width

    @property
    def freeing(self) -> int:
        """Return the warps that read each tile."""
        return WARPS // WARPGROUPS

    @property
    def blocks(self) -> int:
        """Return the blocks of a launch."""
        return min(self.tiles, BLOCKS)

    @property
    def _parts(self) -> int:
        return self.first.width // LINES

    def place(self) -> list[str]:
        """Return nothing: a warpgroup has the whole tile."""
        return []

    def more_barriers(self) -> list[str]:
        """Return the statements that initialise the barriers by which a warpgroup lets the other one go on."""
        passed = f"freed + {self.first.layout.stages}"
        return [f"for (int w = 0; w < {WARPGROUPS}; ++w) init({passed} + w, {self.freeing});"]

    def sums(self) -> list[str]:
        """Return the declaration of the sums."""
        return [f"float parts[{self._parts}][{self.columns // 2}];"]

    def multiplied(self) -> list[str]:
        """Return the statements that start to multiply a pair of tiles, and wait for the pair before."""
        depth = self.first.layout.depth
        call = function_name(self.columns, self.transposed)
        first, second = self._described(self.first, f"p * {LINES}"), self._described(self.second, "0")
        return [
            'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
            "#pragma unroll",
            f"for (int k = 0; k < {depth}; k += 16)",
            "    #pragma unroll",
            f"    for (int p = 0; p < {self._parts}; ++p) {call}(parts[p], {first}, {second});",
            'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
            'asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");',
        ]

    def block(self, origin: list[str], pointers: Pointers) -> list[str]:
        """Return the statements of a block, whose first row and column and batch some statements find."""
        found = [line.replace("blockIdx.x", "tile") for line in origin]
        stages, count = self.first.layout.stages, self.columns // 2
        passed = f"freed + {stages}"
        each = [
            *found,
            "#pragma unroll",
            f"for (int p = 0; p < {self._parts}; ++p)",
            "    #pragma unroll",
            f"    for (int e = 0; e < {count}; ++e) parts[p][e] = 0;",
            f"wait({passed} + own, round & 1 ^ own ^ 1);",
            f"const int step = (round * {WARPGROUPS} + own) * {self.steps};",
            f"int buffer = step % {stages}, phase = step / {stages} & 1;",
            "#pragma unroll 1",
            f"for (int t = 0; t < {self.steps}; ++t) {{",
            "    wait(filled + buffer, phase);",
            "    multiply(buffer);",
            f"    if (lane == 0 && t > 0) arrive(freed + (buffer == 0 ? {stages - 1} : buffer - 1), 0);",
            f"    {self.turned}",
            "}",
            f"if (lane == 0) arrive({passed} + (own ^ 1), 0);",
            *self.ended(),
            f"if (lane == 0) arrive(freed + (buffer == 0 ? {stages - 1} : buffer - 1), 0);",
            "#pragma unroll",
            f"for (int p = 0; p < {self._parts}; ++p) {{",
            f"    const float (&run)[{count}] = parts[p];",
            f"    const int row = p * {LINES}, column = 0;",
            *statements(self.results.written_from_registers(self.tile[1], pointers), 1),
            "}",
        ]
        first = "int tile = blockIdx.x + own * gridDim.x, round = 0"
        return [
            *self.memory(),
            f"if (warp == {WARPS}) {{",
            "    if (lane != 0) return;",
            "    int buffer = 0, phase = 1;",
            f"    for (int tile = blockIdx.x; tile < {self.tiles}; tile += gridDim.x) {{",
            *statements([*found, *self.asked()], 2),
            "    }",
            "    return;",
            "}",
            *self.sums(),
            *self.multiply(),
            f"const int own = warp / {self.freeing};",
            f"for ({first}; tile < {self.tiles}; tile += {WARPGROUPS} * gridDim.x, ++round) {{",
            *statements(each, 1),
            "}",
        ]


def chosen(alone: Streamed) -> Streamed:
    """Return tiles of which warpgroups take turns where blocks have several; the same ones where they have not."""
    if not alone.results.from_registers:
        return alone
    first, second = (replace(operand, width=SIDE) for operand in (alone.first, alone.second))
    layout = replace(first.layout, stages=stages_of(SIDE, SIDE, prod(first.reduction.extents)))
    first, second = replace(first, layout=layout), replace(second, layout=layout)
    taken = Turns(alone.group, alone.product, first, second)
    return taken if min(alone.first.width, alone.second.width) >= SIDE and taken.tiles > BLOCKS else alone
