"""Tiles of products on the scalar units of the ``cuda`` target: float32 throughout, a rectangle of results a thread.

Threads of a warp lie eight along the axis whose results are neighbours in memory and four along the other, such that
each reading of shared memory takes packs that few banks hold twice. In the end the sums lie in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda.gathers import AS_IT_IS, Gathered
from agents.playbook.compiler.cuda.operands import THREADS
from agents.playbook.compiler.cuda.results import Results
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.products import Product, by_row

RUN = 256
"""Terms that are added in one float32 before they go to the total, where there are many."""
LONGEST_RUN = 4096
"""Terms up to which one float32 sums them all."""
_KINDS = {1: "float", 2: "float2", 4: "float4"}
_FEWEST = 4
"""Threads along rows, and along columns."""
_SIDES = tuple(1 << place for place in range(2, 7))


@dataclass(frozen=True)
class Scalar:
    """Sums on the scalar units: a rectangle of results a thread, in packs of up to four neighbours."""

    group: Group
    product: Product
    first: Gathered
    second: Gathered
    depth: int
    ahead: int = 1
    """Pairs of tiles that are read before their time."""

    @staticmethod
    def functions() -> list[str]:
        """Return the device functions that the statements call."""
        return [AS_IT_IS.strip()]

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
        down, beside = threads_of(self.first.width, self.second.width)
        return self.first.width // down, self.second.width // beside

    @property
    def in_runs(self) -> bool:
        """Return whether sums are put away now and then."""
        return self.depth > LONGEST_RUN

    @property
    def resident(self) -> int:
        """Return the blocks that share a multiprocessor's registers."""
        return 1 if self.in_runs else 2

    @property
    def results(self) -> Results:
        """Return how sums come to the result."""
        return Results(self.group, self.product, self.first.width, self.second.width)

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory of a block: of tiles and tables, and in the end of the sums."""
        tables = self.first.table_words + self.second.table_words
        return max((self._tile_words + tables) * 4, self.results.shared_bytes)

    @property
    def _tile_words(self) -> int:
        return self.first.layout.stages * (self.first.size + self.second.size)

    @property
    def _by_row(self) -> bool:
        return by_row(self.group, self.product)

    def memory(self) -> list[str]:
        """Return the declarations of shared memory, and of a thread's place."""
        first, second = self.first, self.second
        down, beside = threads_of(first.width, second.width)
        near, far, count = ("column", "row", beside) if self._by_row else ("row", "column", down)
        lanes = min(count, 8)
        lines = [
            "extern __shared__ __align__(128) unsigned char pool[];",
            "float* const tile_a = reinterpret_cast<float*>(pool);",
            f"float* const tile_b = tile_a + {first.layout.stages * first.size};",
            "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
            f"const int {near} = lane / 2 % {lanes} + warp % {count // lanes} * {lanes};",
            f"const int {far} = lane % 2 + lane / {2 * lanes} * 2 + warp / {count // lanes} * {32 // lanes};",
        ]
        place = self._tile_words
        for operand in (first, second):
            if operand.table_words:
                lines.append(f"unsigned* const table_{operand.letter} = reinterpret_cast<unsigned*>(tile_a + {place});")
                place += operand.table_words
        return lines

    def sums(self) -> list[str]:
        """Return the declarations of the sums, once the tables are there."""
        rows, columns = self.counts
        tables = self.first.table_words + self.second.table_words
        lines = [*(["__syncthreads();"] if tables else []), f"float run[{rows}][{columns}] = {{}};"]
        return [*lines, f"float total[{rows}][{columns}] = {{}};"] if self.in_runs else lines

    def multiplied(self) -> list[str]:
        """Return the statements that multiply a pair of tiles."""
        rows, columns = self.counts
        body = [
            f"float a[{rows}], b[{columns}];",
            *self._read(self.first, "a", rows),
            *self._read(self.second, "b", columns),
            *_each(self.counts, ["run[i][j] += a[i] * b[j];"]),
        ]
        return [
            *(self._start(*each) for each in ((self.first, "row", rows), (self.second, "column", columns))),
            "#pragma unroll",
            f"for (int k = 0; k < {self.first.layout.depth}; ++k) {{",
            *statements(body, 1),
            "}",
        ]

    @staticmethod
    def _start(operand: Gathered, place: str, count: int) -> str:
        letter = operand.letter
        return f"const float* const own_{letter} = tile_{letter} + buffer * {operand.size} + {place} * {_pack(count)};"

    @staticmethod
    def _read(operand: Gathered, into: str, count: int) -> list[str]:
        pack = _pack(count)
        kind = _KINDS[pack]
        start = f"own_{operand.letter} + k * {operand.pitch}"
        return [
            "#pragma unroll",
            f"for (int g = 0; g < {count // pack}; ++g)",
            f"    *reinterpret_cast<{kind}*>({into} + g * {pack}) =",
            f"        *reinterpret_cast<const {kind}*>({start} + g * {operand.width // count * pack});",
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
        """Return the statements that write the results, through shared memory."""
        counts, results = self.counts, self.results
        sums = "total" if self.in_runs else "run"
        near, far = int(self._by_row), 1 - int(self._by_row)
        pack = _pack(counts[near])
        places = [
            _within(thread, item, _pack(count), operand.width // count)
            for thread, item, count, operand in zip(
                ("row", "column"), ("i", "j"), counts, (self.first, self.second), strict=True
            )
        ]
        item = "ij"[near]
        steps = [f"[{'i' if near else f'i + {v}'}][{f'j + {v}' if near else 'j'}]" for v in range(pack)]
        kind = _KINDS[pack]
        values = ", ".join(f"{sums}{step}" for step in steps)
        store = f"*reinterpret_cast<{kind}*>(sums + {results.place(*places)}) = {kind}{{{values}}};"
        loop = [f"for (int {item} = 0; {item} < {counts[near]}; {item} += {pack})", f"    {store}"]
        return [
            *(self._put_away() if self.in_runs else []),
            "float* const sums = reinterpret_cast<float*>(pool);",
            "#pragma unroll",
            f"for (int {'ij'[far]} = 0; {'ij'[far]} < {counts[far]}; ++{'ij'[far]}) {{",
            "    #pragma unroll",
            *statements(loop, 1),
            "}",
            *results.written(pointers),
        ]


def threads_of(m: int, n: int) -> tuple[int, int]:
    """Return the threads along a tile's rows and columns: those whose rectangles are nearest to squares."""
    fits = [
        (THREADS // beside, beside)
        for beside in _SIDES
        if n % beside == 0 and m % (THREADS // beside) == 0 and THREADS // beside >= _FEWEST
    ]
    return min(fits, key=lambda sides: m // sides[0] + n // sides[1])


def _pack(count: int) -> int:
    """Return how many neighbours of a thread's lie together."""
    return next(pack for pack in (4, 2, 1) if count % pack == 0)


def _within(thread: str, item: str, pack: int, threads: int) -> str:
    """Return the place in the tile of one of a thread's rows or columns: packs, each beside those of other threads."""
    return f"({item} / {pack} * {threads * pack} + {thread} * {pack} + {item} % {pack})"


def _each(counts: tuple[int, int], inner: list[str]) -> list[str]:
    loop = ["#pragma unroll", f"for (int j = 0; j < {counts[1]}; ++j) {{", *statements(inner, 1), "}"]
    return ["#pragma unroll", f"for (int i = 0; i < {counts[0]}; ++i) {{", *statements(loop, 1), "}"]
