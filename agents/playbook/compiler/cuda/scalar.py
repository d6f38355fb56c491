"""Tiles of products on the scalar units of the ``cuda`` target: float32 throughout, a rectangle of results a thread."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda.operands import Operand
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.parameters import Pointers, stores
from agents.playbook.compiler.products import Product, by_row

SIDE = 16
"""Threads along rows and along columns of a tile."""
RUN = 256
"""Terms that are added in one float32 before they go to the total, where there are many."""
LONGEST_RUN = 4096
"""Terms up to which one float32 sums them all."""
_QUAD = 4


@dataclass(frozen=True)
class Scalar:
    """Sums on the scalar units: a rectangle of results a thread, in packs of up to four neighbours."""

    group: Group
    product: Product
    first: Operand
    second: Operand
    depth: int
    shared_bytes: int = 0
    """Dynamic shared memory: none."""
    resident: int = 1
    """Blocks of a multiprocessor that are asked for."""
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
    def by_row(self) -> bool:
        """Return whether neighbouring threads have neighbouring columns, else rows: as these lie in the result."""
        return by_row(self.group, self.product)

    def _pack(self, count: int, *, beside: bool) -> int:
        """Return how many neighbours a thread has: one where neighbouring threads write neighbours."""
        return 1 if beside else min(_QUAD, count)

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
        beside, below = ("column", "row") if self.by_row else ("row", "column")
        return [*lines, f"const int {beside} = threadIdx.x % {SIDE}, {below} = threadIdx.x / {SIDE};"]

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
            *self._read(self.first, "a", "row", rows, self._pack(rows, beside=not self.by_row)),
            *self._read(self.second, "b", "column", columns, self._pack(columns, beside=self.by_row)),
            *_each(self.counts, ["run[i][j] += a[i] * b[j];"]),
        ]
        return ["#pragma unroll", f"for (int k = 0; k < {self.first.layout.depth}; ++k) {{", *statements(body, 1), "}"]

    @staticmethod
    def _read(operand: Operand, into: str, place: str, count: int, pack: int) -> list[str]:
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
        m = _within("row", "i", self._pack(rows, beside=not self.by_row))
        n = _within("column", "j", self._pack(columns, beside=self.by_row))
        body = [
            f"const int m = m0 + {m}, n = n0 + {n};",
            f"if (m < {lines} && n < {across}) {{",
            *statements(inside, 1),
            "}",
        ]
        return [*(self._put_away() if self.in_runs else []), *_each(self.counts, body)]


def _within(thread: str, item: str, pack: int) -> str:
    """Return the place in the tile of one of a thread's rows or columns: packs, each beside those of other threads."""
    return f"{item} / {pack} * {SIDE * pack} + {thread} * {pack} + {item} % {pack}"


def _each(counts: tuple[int, int], inner: list[str]) -> list[str]:
    loop = ["#pragma unroll", f"for (int j = 0; j < {counts[1]}; ++j) {{", *statements(inner, 1), "}"]
    return ["#pragma unroll", f"for (int i = 0; i < {counts[0]}; ++i) {{", *statements(loop, 1), "}"]
