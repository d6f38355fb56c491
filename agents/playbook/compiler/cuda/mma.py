"""Tiles of products on tensor cores, a warp at a time (``mma.sync``, sm_80): 16-bit or tf32 operands, float32 sums.

Fragments of 16-bit operands are read by ``ldmatrix``, transposed where a tile's rows hold neighbouring lines; those of
tf32 word by word. PTX ISA 9.0, sections 9.7.15.5 and 9.7.9.25. In the end the sums lie in shared memory, and threads
write results in the order that these have in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda.operands import THREADS, Operand
from agents.playbook.compiler.cuda.results import Results
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import Product

WARPS = THREADS // 32
_MMA = {
    "half": "m16n8k16.row.col.f32.f16.f16.f32",
    "bfloat16": "m16n8k16.row.col.f32.bf16.bf16.f32",
    "tf32": "m16n8k8.row.col.f32.tf32.tf32.f32",
}

COPIES = r"""
template <class T> __device__ __forceinline__ void copy_pack(void* to, const T* from, bool inside) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    const int size = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(size) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}
"""
_FRAGMENTS = r"""
__device__ __forceinline__ void four_matrices(unsigned (&d)[4], const unsigned short* row) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void four_transposed(unsigned (&d)[4], const unsigned short* row) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ unsigned as_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}
"""
_MULTIPLY = r"""
__device__ __forceinline__ void $NAME(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.$SHAPE {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
"""


def functions(precision: str) -> str:
    """Return the device functions that warps multiply with."""
    multiply = _MULTIPLY.replace("$NAME", "multiply_add").replace("$SHAPE", _MMA[precision])
    return f"{_FRAGMENTS.strip()}\n{multiply.strip()}"


def warps(m: int, n: int) -> tuple[int, int]:
    """Return the warps of a tile, below each other and side by side: each has columns in pairs of eight."""
    down = 2 if m <= n else 4
    return down, WARPS // down


def rectangle(m: int, n: int) -> tuple[int, int]:
    """Return the rows and columns of a tile that a warp computes."""
    down, beside = warps(m, n)
    return m // down, n // beside


@dataclass(frozen=True)
class Arithmetic:
    """Sums on tensor cores: each warp computes a rectangle of 16 by 8 fragments."""

    group: Group
    product: Product
    first: Operand
    second: Operand
    resident: int = 1
    """Blocks of a multiprocessor that are asked for."""

    @property
    def ahead(self) -> int:
        """Return the pairs of tiles that copies run ahead."""
        return self.first.layout.stages - 1

    def functions(self) -> list[str]:
        """Return the device functions that the statements call."""
        return [COPIES.strip(), functions(self.first.layout.precision)]

    def before_barrier(self) -> list[str]:
        """Return what makes copies seen: nothing."""
        return []

    @property
    def _warps(self) -> tuple[int, int]:
        return warps(self.first.width, self.second.width)

    @property
    def _counts(self) -> tuple[int, int]:
        """Return a warp's fragments of 16 rows, and of 8 columns."""
        down, beside = self._warps
        return self.first.width // down // 16, self.second.width // beside // 8

    @property
    def _bytes_of_tiles(self) -> int:
        layout = self.first.layout
        return layout.stages * (self.first.size + self.second.size) * layout.item_bytes

    @property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.product, self.first.width, self.second.width)

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: of the tiles, and in the end of the sums."""
        return max(self._bytes_of_tiles, self.results.shared_bytes)

    def memory(self) -> list[str]:
        """Return the declarations of tiles, and of a warp's place."""
        stored = self.first.layout.stored
        down, beside = self._warps
        return [
            "extern __shared__ __align__(128) unsigned char pool[];",
            f"{stored}* const tile_a = reinterpret_cast<{stored}*>(pool);",
            f"{stored}* const tile_b = tile_a + {self.first.layout.stages * self.first.size};",
            "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
            f"const int row = warp / {beside} * {self.first.width // down};",
            f"const int column = warp % {beside} * {self.second.width // beside};",
        ]

    def sums(self) -> list[str]:
        """Return the declaration of the sums: of each fragment, two neighbours in two rows."""
        rows, columns = self._counts
        return [f"float run[{rows}][{columns}][4] = {{}};"]

    def multiplied(self) -> list[str]:
        """Return the statements that multiply a pair of tiles."""
        rows, columns = self._counts
        words = self.first.layout.item_bytes == 4
        body = [
            f"unsigned a[{rows}][4], b[{columns}][2];",
            *(self._words() if words else self._matrices()),
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; ++i)",
            "    #pragma unroll",
            f"    for (int j = 0; j < {columns}; ++j) multiply_add(run[i][j], a[i], b[j][0], b[j][1]);",
        ]
        step = 8 if words else 16
        start = [
            f"const {self.first.layout.stored}* const {operand.letter}_tile = "
            f"tile_{operand.letter} + buffer * {operand.size};"
            for operand in (self.first, self.second)
        ]
        loop = f"for (int k = 0; k < {self.first.layout.depth}; k += {step}) {{"
        return [*start, "#pragma unroll", loop, *statements(body, 1), "}"]

    def _matrices(self) -> list[str]:
        """Return the statements that read 16-bit fragments: four matrices of eight by eight at once."""
        rows, columns = self._counts
        a_line, a_depth = "row + i * 16 + lane % 16", "k + lane / 16 * 8"
        if self.first.by_line:
            a_line, a_depth = "row + i * 16 + lane / 8 % 2 * 8", "k + lane / 16 * 8 + lane % 8"
        b_line, b_depth = "column + j * 16 + lane / 16 * 8 + lane % 8", "k + lane / 8 % 2 * 8"
        if self.second.by_line:
            b_line, b_depth = "column + j * 16 + lane / 16 * 8", "k + lane / 8 % 2 * 8 + lane % 8"
        return [
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; ++i)",
            f"    {self._read(self.first)}(a[i], a_tile + {_at(self.first, a_line, a_depth)});",
            "#pragma unroll",
            f"for (int j = 0; j < {columns // 2}; ++j) {{",
            "    unsigned pair[4];",
            f"    {self._read(self.second)}(pair, b_tile + {_at(self.second, b_line, b_depth)});",
            "    b[2 * j][0] = pair[0], b[2 * j][1] = pair[1], b[2 * j + 1][0] = pair[2], b[2 * j + 1][1] = pair[3];",
            "}",
        ]

    @staticmethod
    def _read(operand: Operand) -> str:
        return "four_transposed" if operand.by_line else "four_matrices"

    def _words(self) -> list[str]:
        """Return the statements that read fragments of tf32."""
        rows, columns = self._counts
        a = _at(self.first, "row + i * 16 + lane / 4 + e % 2 * 8", "k + lane % 4 + e / 2 * 4")
        b = _at(self.second, "column + j * 8 + lane / 4", "k + lane % 4 + e * 4")
        return [
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; ++i)",
            "    #pragma unroll",
            f"    for (int e = 0; e < 4; ++e) a[i][e] = as_tf32(a_tile[{a}]);",
            "#pragma unroll",
            f"for (int j = 0; j < {columns}; ++j)",
            "    #pragma unroll",
            f"    for (int e = 0; e < 2; ++e) b[j][e] = as_tf32(b_tile[{b}]);",
        ]

    def stepped(self) -> list[str]:
        """Return what is done after each pair of tiles."""
        return []

    def ended(self) -> list[str]:
        """Return what waits for the last instructions: nothing."""
        return []

    def written(self, pointers: Pointers) -> list[str]:
        """Return the statements that write the results, through shared memory."""
        rows, columns = self._counts
        place = self.results.place("row + i * 16 + lane / 4 + e / 2 * 8", "column + j * 8 + lane % 4 * 2 + e % 2")
        return [
            "float* const sums = reinterpret_cast<float*>(pool);",
            "#pragma unroll",
            f"for (int i = 0; i < {rows}; ++i)",
            "    #pragma unroll",
            f"    for (int j = 0; j < {columns}; ++j)",
            "        #pragma unroll",
            f"        for (int e = 0; e < 4; ++e) sums[{place}] = run[i][j][e];",
            *self.results.written(pointers),
        ]


def _at(operand: Operand, line: str, depth: str) -> str:
    """Return the place of an element in its tile."""
    outer, inner = (depth, line) if operand.by_line else (line, depth)
    return f"({outer}) * {operand.pitch} + {inner}"
