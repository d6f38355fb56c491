"""Scans on the ``cuda`` target: a thread a row where rows lie side by side, else a warp or a block a row.

Each thread of a row takes some neighbouring elements at a time, as a pack where they lie side by side. Their totals are
scanned by shuffles within a warp, and through shared memory between the warps of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.cuda.rows import SHORT_ROW, WARP
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import argument_of, indices
from agents.playbook.compiler.packs import Packs, joined, width_of
from agents.playbook.compiler.parameters import Pointers, store, stores, target_index, unrounded
from agents.playbook.compiler.tensors import Scan

ITEMS = 4
"""Elements that a thread takes at a time where they are no pack."""
FEW = 32
"""Elements of a row up to which a thread takes it alone."""
ROWS_BESIDE, ROWS = 32, 4096
"""Neighbouring rows, and rows in all, from which on a thread takes each."""


@dataclass(frozen=True)
class Row:
    """A scan along one axis."""

    group: Group
    scan: Scan
    pointers: Pointers
    block: int

    @property
    def axes(self) -> list[int]:
        """Return the axes along which rows lie."""
        return [axis for axis in range(len(self.group.shape)) if axis != self.scan.axis]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return prod(self.group.shape[axis] for axis in self.axes)

    @property
    def size(self) -> int:
        """Return the elements of a row."""
        return self.scan.shape[self.scan.axis]

    @property
    def accumulator(self) -> Accumulator:
        """Return the state of the scan."""
        return Accumulator(self.scan.kind, self.scan.register)

    @property
    def index(self) -> str:
        """Return the name of the index along a row."""
        return f"i{self.scan.axis}"

    @cached_property
    def packs(self) -> Packs:
        """Packs of neighbouring elements; of one where some would not be wide."""
        assert self.group.argument is not None
        index, (target,) = self.group.index[self.scan.axis], self.group.targets
        place = target.tensor.offset(target_index(self.group, target))
        return Packs(index, width_of(index, self.size, [self.group.argument], [(place, target.tensor)]))

    @property
    def items(self) -> int:
        """Return the elements that a thread takes at a time."""
        return self.packs.width if self.packs.width > 1 else ITEMS

    def lines(self) -> tuple[list[str], int]:
        """Return the statements of a block, and how many blocks there are."""
        beside = prod(self.group.shape[self.scan.axis + 1 :]) >= ROWS_BESIDE and self.rows >= ROWS
        if beside or self.size <= FEW:
            return self._alone(), -(-self.rows // self.block)
        warps = 1 if self.size <= SHORT_ROW else self.block // WARP
        each = self.block // WARP // warps
        return self._shared(warps, each), -(-self.rows // each)

    def _alone(self) -> list[str]:
        lines, value = argument_of(self.group, self.pointers)
        return [
            f"const long long o = (long long)blockIdx.x * {self.block} + threadIdx.x;",
            f"if (o >= {self.rows}LL) return;",
            *indices(self.group, "o", self.axes),
            f"{self.accumulator.total} total = {self.accumulator.first};",
            f"for (idx {self.index} = 0; {self.index} < {self.size}; ++{self.index}) {{",
            *statements([*lines, self.accumulator.step("total", value), *self._result()], 1),
            "}",
        ]

    def _result(self) -> list[str]:
        kind = self.accumulator.term
        return [f"const {kind} result = ({kind})total;", *stores(self.group, self.pointers.of, "result")]

    def _shared(self, warps: int, each: int) -> list[str]:
        """Return the statements by which so many warps scan a row, and a block so many rows.

        Warps beyond the last row scan it too, and do not write.
        """
        total, first, tile = self.accumulator.total, self.accumulator.first, warps * WARP * self.items
        even = self.rows % each == 0
        row = "blockIdx.x" if each == 1 else f"(long long)blockIdx.x * {each} + threadIdx.x / {WARP}"
        row = row if even else f"{row} < {self.rows} ? {row} : {self.rows - 1}"
        load, write = (self._pack(tile), self._pack_result(tile)) if self.packs.width > 1 else self._one_by_one()
        inside = [
            f"{total} own = {first}, kept[{self.items}];",
            *load,
            *self._scanned(warps),
            *(write if even else [f"if ({self._own_row(each)} < {self.rows}) {{", *statements(write, 1), "}"]),
            self.accumulator.step("carry", "all"),
        ]
        return [
            *([f"const idx o = (idx)({row});"] if self.rows > 1 else []),
            *indices(self.group, "o", self.axes),
            f"const int lane = (int)threadIdx.x % {WARP};",
            f"const int thread = {'lane' if warps == 1 else '(int)threadIdx.x'};",
            *([f"__shared__ {total} sums[2][{warps}];", "int side = 0;"] if warps > 1 else []),
            f"{total} carry = {first};",
            f"for (idx begin = 0; begin < {self.size}; begin += {tile}) {{",
            *statements(inside, 1),
            "}",
        ]

    @staticmethod
    def _own_row(each: int) -> str:
        return f"(long long)blockIdx.x * {each} + threadIdx.x / {WARP}"

    def _scanned(self, warps: int) -> list[str]:
        """Return the statements that find the total ``before`` a thread's elements, and of ``all`` of the tile."""
        total, step = self.accumulator.total, self.accumulator.step
        lines = [
            f"{total} until = own;",
            "#pragma unroll",
            f"for (int by = 1; by < {WARP}; by *= 2) {{",
            f"    const {total} other = earlier(until, by);",
            f"    if (lane >= by) {{ {step('until', 'other')} }}",
            "}",
            f"const {total} in_warp = earlier(until, 1);",
            f"{total} before = carry;",
        ]
        if warps == 1:
            lines.append(f"const {total} all = at(until, {WARP - 1});")
        else:
            lines += [
                f"if (lane == {WARP - 1}) sums[side][threadIdx.x / {WARP}] = until;",
                "__syncthreads();",
                f"{total} all = {self.accumulator.first};",
                "#pragma unroll",
                f"for (int warp = 0; warp < {warps}; ++warp) {{",
                f"    if (warp == (int)threadIdx.x / {WARP}) {{ {step('before', 'all')} }}",
                f"    {step('all', 'sums[side][warp]')}",
                "}",
                "side = 1 - side;",
            ]
        return [*lines, f"if (lane > 0) {{ {step('before', 'in_warp')} }}"]

    def _pack(self, tile: int) -> list[str]:
        """Return the statements that load a thread's pack and keep the totals of its beginnings."""
        assert self.group.argument is not None
        (value,) = self.packs.unguarded([self.group.argument])
        inputs = fetched(self.packs, [value], 1, self.pointers.of)
        emitter = Emitter({**inputs.names, self.packs.index: EACH}, self.pointers.of)
        (text,) = emitter.emit(value)
        each = [*emitter.lines, self.accumulator.step("own", text), "kept[k] = own;"]
        return [
            *inputs.declared,
            *self._for_pack(tile, inputs.lines),
            *self._for_pack(tile, each_item(self.items, each)),
        ]

    def _pack_result(self, tile: int) -> list[str]:
        (target,) = self.group.targets
        assert self.group.accumulated is not None
        emitter = Emitter({self.group.accumulated: "result", self.packs.index: FIRST}, self.pointers.of, "q")
        value, place = emitter.emit(
            unrounded(target.value, target.tensor),
            joined(target.tensor.offset(target_index(self.group, target))),
        )
        kind, pointer = self.accumulator.term, self.pointers.of(target.tensor)
        each = [
            *self._total_of_item(),
            f"const {kind} result = ({kind})total;",
            store("o0.items", target.tensor, "k", value),
        ]
        body = [
            f"pack<{TYPES[target.tensor.dtype]}, {self.items}> o0;",
            *each_item(self.items, each),
            *emitter.lines,
            f"put({pointer} + {place}, o0);",
        ]
        return self._for_pack(tile, body)

    def _for_pack(self, tile: int, body: list[str]) -> list[str]:
        found = f"const idx {FIRST} = begin + (idx)thread * {self.items};"
        return each_pack(1, found, str(self.size) if self.size % tile else "", body)

    def _total_of_item(self) -> list[str]:
        return [f"{self.accumulator.total} total = before;", self.accumulator.step("total", "kept[k]")]

    def _one_by_one(self) -> tuple[list[str], list[str]]:
        """Return the statements that load a thread's elements, and those that write their totals."""
        lines, value = argument_of(self.group, self.pointers)
        found = f"const idx {self.index} = begin + (idx)thread * {self.items} + k;"
        inside = f"if ({self.index} < {self.size}) {{"
        load = [found, inside, *statements([*lines, self.accumulator.step("own", value)], 1), "}", "kept[k] = own;"]
        write = [found, inside, *statements([*self._total_of_item(), *self._result()], 1), "}"]
        return each_item(self.items, load), each_item(self.items, write)
