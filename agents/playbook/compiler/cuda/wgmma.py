"""Tiles of products by warpgroup instructions (``wgmma``, sm_90a): 16-bit operands, both read from shared memory.

Tiles lie in rows of 128 bytes, swizzled: neighbours in depth where these are neighbours in memory, else blocks of 64
neighbouring lines, which the instruction transposes. A block that is alone on its multiprocessor has one group of
instructions under way while it waits for the next tiles. PTX ISA 9.0, sections 9.7.15.5.1 (layouts in shared memory)
and 9.7.15.7.2 (``wgmma.mma_async``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agents.playbook.compiler.cuda.mma import COPIES
from agents.playbook.compiler.cuda.operands import THREADS, Operand
from agents.playbook.compiler.cuda.results import QUADS, Results
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import Product

LINES = 64
"""Rows that one instruction multiplies."""
ROW = 64
"""16-bit elements of a row of 128 bytes in shared memory."""
WARPGROUPS = THREADS // 128
FEWEST_STAGES = 2
"""Pairs of tiles that instructions may still read, or are about to."""
STAGES, MOST_STAGES, DEEP = 4, 6, 1024
"""Pairs of tiles, and the depth from which on more of them pay."""
STAGES_OF_TWO = 3
"""Pairs of tiles of each of two blocks of a multiprocessor; each waits for its products while the other multiplies."""
SHARED_BYTES = 227 * 1024
"""Shared memory of a block of sm_90."""
_TYPES = {"half": "f16", "bfloat16": "bf16"}

FUNCTIONS = r"""
__device__ __forceinline__ unsigned long long described(const unsigned short* rows, unsigned long long blocks) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(rows);  // swizzled rows of 128 bytes, by eight
    return (unsigned long long)((address & 0x3ffff) >> 4) | blocks << 16 | 64ull << 32 | 1ull << 62;
}
"""


def function(precision: str, columns: int, transposed: tuple[bool, bool]) -> str:
    """Return the device function of one instruction, ``multiply_add_...``, for so many columns."""
    count = columns // 2
    places = ", ".join(f"%{n}" for n in range(count))
    results = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    kind, flags = _TYPES[precision], ", ".join(str(int(flag)) for flag in transposed)
    return "\n".join(
        [
            f"__device__ __forceinline__ void {function_name(columns, transposed)}(",
            f"    float (&d)[{count}], unsigned long long a, unsigned long long b) {{",
            f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "',
            f'        "{{{places}}}, %{count}, %{count + 1}, 1, 1, 1, {flags};"',
            f'        : {results} : "l"(a), "l"(b));',
            "}",
        ]
    )


def function_name(columns: int, transposed: tuple[bool, bool]) -> str:
    """Return the name of an instruction's function."""
    return f"multiply_add_{columns}_{int(transposed[0])}{int(transposed[1])}"


@dataclass(frozen=True)
class Warpgroups:
    """Sums of two warpgroups, below each other or side by side."""

    group: Group
    product: Product
    first: Operand
    second: Operand
    resident: int = 1
    """Blocks of a multiprocessor; one alone goes on while its instructions are under way."""

    @property
    def ahead(self) -> int:
        """Return the pairs of tiles that copies run ahead: fewer where instructions still read one."""
        return self.first.layout.stages - 1 - self.under_way

    @property
    def under_way(self) -> int:
        """Return the groups of instructions that are not waited for."""
        return 1 if self.resident == 1 else 0

    @property
    def _beside(self) -> int:
        return WARPGROUPS // (self.first.width // LINES)

    @property
    def tile(self) -> tuple[int, int]:
        """Return the rows and columns of a tile of the result."""
        return self.first.width, self.second.width

    @property
    def columns(self) -> int:
        """Return the columns that one instruction multiplies."""
        return self.second.width // self._beside

    @property
    def own_columns(self) -> int:
        """Return the columns of the result that a warpgroup has: fewer where there are sums of several products."""
        return self.columns // len(self.group.sums)

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Return which operands' rows in shared memory hold neighbouring lines."""
        return self.first.across, self.second.across

    @cached_property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.product, self.first.width, self.second.width)

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: of the tiles, and in the end of the sums."""
        layout = self.first.layout
        tiles = layout.stages * (self.first.size + self.second.size) * layout.item_bytes
        return tiles if self.results.from_registers else max(tiles, self.results.shared_bytes)

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        return [COPIES.strip(), *self.functions_of_products()]

    def functions_of_products(self) -> list[str]:
        """Return the device functions that multiply, and that store the results."""
        quads = [QUADS.strip()] if self.results.from_registers else []
        return [*quads, FUNCTIONS.strip(), function(self.first.layout.precision, self.columns, self.transposed)]

    def memory(self) -> list[str]:
        """Return the declarations of tiles, of a thread's warp, and of a warpgroup's place."""
        return [
            "extern __shared__ __align__(1024) unsigned char pool[];",
            "unsigned short* const tile_a = reinterpret_cast<unsigned short*>(pool);",
            f"unsigned short* const tile_b = tile_a + {self.first.layout.stages * self.first.size};",
            "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
            f"const int row = warp / 4 / {self._beside} * {LINES};",
            f"const int column = warp / 4 % {self._beside} * {self.columns};",
        ]

    def sums(self) -> list[str]:
        """Return the declaration of the sums."""
        return [f"float run[{self.columns // 2}] = {{}};"]

    def before_barrier(self) -> list[str]:
        """Return what makes copies seen by the instructions, which read memory in another way."""
        return ['asm volatile("fence.proxy.async.shared::cta;" ::: "memory");']

    def multiplied(self) -> list[str]:
        """Return the statements that start to multiply a pair of tiles, and wait for the pair before."""
        depth = self.first.layout.depth
        call = function_name(self.columns, self.transposed)
        parts = [self._described(operand, line) for operand, line in ((self.first, "row"), (self.second, "column"))]
        return [
            'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
            "#pragma unroll",
            f"for (int k = 0; k < {depth}; k += 16) {call}(run, {parts[0]}, {parts[1]});",
            'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
            f'asm volatile("wgmma.wait_group.sync.aligned {self.under_way};" ::: "memory");',
        ]

    @staticmethod
    def _described(operand: Operand, line: str) -> str:
        tile, depth = f"tile_{operand.letter} + buffer * {operand.size}", operand.layout.depth
        if operand.across:
            return f"described({tile} + {line} / {ROW} * {depth * ROW} + k * {ROW}, {depth * ROW * 2 // 16}ull)"
        return f"described({tile} + {line} * {ROW} + k, 1ull)"

    def stepped(self) -> list[str]:
        """Return what is done after each pair of tiles."""
        return []

    def written(self, pointers: Pointers) -> list[str]:
        """Return the statements that write the results, from registers or through shared memory."""
        if self.results.from_registers:
            return self.results.written_from_registers(self.own_columns, pointers)
        place = self.results.place("row + warp % 4 * 16 + lane / 4 + e % 4 / 2 * 8",
                                   "column + e / 4 * 8 + lane % 4 * 2 + e % 2")  # fmt: skip
        return [
            "float* const sums = reinterpret_cast<float*>(pool);",
            "#pragma unroll",
            f"for (int e = 0; e < {self.columns // 2}; ++e) sums[{place}] = run[e];",
            *self.results.written(pointers),
        ]

    def ended(self) -> list[str]:
        """Return what waits for the last instructions."""
        return ['asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");']


def stages_of(m: int, n: int, depth: int) -> int:
    """Return the pairs of tiles of so many lines that a block has: more of them for deep products, which fit."""
    return min(MOST_STAGES if depth >= DEEP else STAGES, SHARED_BYTES // ((m + n) * ROW * 2))


def fits(first: Operand, second: Operand) -> bool:
    """Return whether both operands lie in packs that are copied as they are, in tiles that instructions read."""
    if not (first.is_copied and second.is_copied) or first.width not in (LINES, WARPGROUPS * LINES):
        return False
    if first.layout.depth != ROW or first.layout.stages <= FEWEST_STAGES:
        return False
    columns = second.width * (first.width // LINES) // WARPGROUPS
    return columns % ROW == 0 and columns <= 256
