"""Scans on the ``cuda`` target: a thread a row where rows lie side by side, else a warp or a block a row.

Each thread of a row takes some neighbouring elements at a time, as packs where they lie side by side; a warp's packs
follow each other. Their totals are scanned by shuffles within a warp, and through shared memory between the warps of a
block. A scan whose elements lie backwards takes them from the end of the row on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_pack, fetched
from agents.playbook.compiler.cuda.rows import SHORT_ROW, WARP
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import argument_of, indices
from agents.playbook.compiler.packs import Packs, joined, width_of
from agents.playbook.compiler.parameters import Pointers, store, stores, target_index, unrounded
from agents.playbook.compiler.tensors import Scan
from agents.playbook.compiler.terms import Term, minus, number, substituted

ITEMS = 4
"""Elements that a thread takes at a time where they are no pack."""
HELD = 16
"""Elements that a thread takes at a time in packs, so that enough bytes are in flight."""
MOST_PACKS = 4
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
    backwards: bool = False
    """True where the index along a row counts from its end, and the scan begins there."""

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
        """Packs of neighbouring elements; of one where results would not be wide."""
        assert self.group.argument is not None
        index, (target,) = self.group.index[self.scan.axis], self.group.targets
        stored = [(target.tensor.offset(target_index(self.group, target)), target.tensor)]
        width = width_of(index, self.size, [self.group.argument, target.value], stored)
        return Packs(index, width if width > 1 else min(ITEMS, width_of(index, self.size, [], stored)))

    @property
    def items(self) -> int:
        """Return the elements of a pack, or those that a thread takes at a time one by one."""
        return self.packs.width if self.packs.width > 1 else ITEMS

    @property
    def part(self) -> str:
        """C++ type of the totals of a thread's elements: sums of so few need no double."""
        return self.accumulator.term if self.accumulator.chunked else self.accumulator.total

    def lines(self) -> tuple[list[str], int]:
        """Return the statements of a block, and how many blocks there are."""
        beside = prod(self.group.shape[self.scan.axis + 1 :]) >= ROWS_BESIDE and self.rows >= ROWS
        if beside or self.size <= FEW:
            return self._alone(), -(-self.rows // self.block)
        if self.packs.width == 1 and not self.backwards:
            turned = self._turned()
            if turned.packs.width > 1:
                return turned.lines()
        warps = 1 if self.size <= SHORT_ROW else self.block // WARP
        each = self.block // WARP // warps
        return self._shared(warps, each), -(-self.rows // each)

    def _turned(self) -> Row:
        """Return the scan with an index along rows that counts from the end."""
        group, (target,) = self.group, self.group.targets
        index = group.index[self.scan.axis]
        assert group.argument is not None
        terms = [group.argument, target.value, *target_index(group, target)]
        argument, value, *place = substituted(terms, {index: minus(number(self.size - 1), index)})
        turned = replace(target, value=value, place=tuple(place))
        return replace(self, group=replace(group, argument=argument, targets=(turned,)), backwards=True)

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
        total, first, step = self.accumulator.total, self.accumulator.first, self.accumulator.step
        even = self.rows % each == 0
        row = "blockIdx.x" if each == 1 else self._own_row(each)
        row = row if even else f"{row} < {self.rows} ? {row} : {self.rows - 1}"
        packs = 1
        if self.packs.width > 1:
            most = -(-self.size // (warps * WARP * self.items))
            packs = max(1, min(HELD // self.items, MOST_PACKS, most))
        tile = warps * WARP * self.items * packs
        load, write = self._in_packs(tile, packs) if self.packs.width > 1 else self._one_by_one()
        inside = [
            f"{total} own[{packs}], before[{packs}];",
            f"{self.part} kept[{packs}][{self.items}];",
            *load,
            *self._scanned(warps, packs),
            *(write if even else [f"if ({self._own_row(each)} < {self.rows}) {{", *statements(write, 1), "}"]),
            step("carry", "all"),
        ]
        warp = f"(int)threadIdx.x / {WARP}"
        return [
            *([f"const idx o = (idx)({row});"] if self.rows > 1 else []),
            *indices(self.group, "o", self.axes),
            f"const int lane = (int)threadIdx.x % {WARP};",
            f"const int thread = {'lane' if warps == 1 else f'{warp} * {packs * WARP} + lane'};",
            *([f"__shared__ {total} sums[2][{warps}];", "int side = 0;"] if warps > 1 else []),
            f"{total} carry = {first};",
            f"for (idx begin = 0; begin < {self.size}; begin += {tile}) {{",
            *statements(inside, 1),
            "}",
        ]

    @staticmethod
    def _own_row(each: int) -> str:
        return f"(long long)blockIdx.x * {each} + threadIdx.x / {WARP}"

    def _scanned(self, warps: int, packs: int) -> list[str]:
        """Return the statements that find the totals ``before`` a thread's packs, and of ``all`` of the tile."""
        total, step = self.accumulator.total, self.accumulator.step
        scan = [
            f"{total} until = own[u];",
            "#pragma unroll",
            f"for (int by = 1; by < {WARP}; by *= 2) {{",
            f"    const {total} other = earlier(until, by);",
            f"    if (lane >= by) {{ {step('until', 'other')} }}",
            "}",
            f"const {total} left = earlier(until, 1);",
            "before[u] = in_warp;",
            f"if (lane > 0) {{ {step('before[u]', 'left')} }}",
            step("in_warp", f"at(until, {WARP - 1})"),
        ]
        lines = [f"{total} in_warp = {self.accumulator.first}, sooner = carry;", *_each(packs, scan)]
        if warps == 1:
            lines.append(f"const {total} all = in_warp;")
        else:
            lines += [
                f"if (lane == {WARP - 1}) sums[side][threadIdx.x / {WARP}] = in_warp;",
                "__syncthreads();",
                f"{total} all = {self.accumulator.first};",
                "#pragma unroll",
                f"for (int warp = 0; warp < {warps}; ++warp) {{",
                f"    if (warp == (int)threadIdx.x / {WARP}) {{ {step('sooner', 'all')} }}",
                f"    {step('all', 'sums[side][warp]')}",
                "}",
                "side = 1 - side;",
            ]
        return [*lines, *_each(packs, [step("before[u]", "sooner")])]

    def _in_packs(self, tile: int, packs: int) -> tuple[list[str], list[str]]:
        """Return the statements that load a thread's packs and keep the totals of their beginnings, and that write."""
        (target,) = self.group.targets
        assert self.group.argument is not None
        assert self.group.accumulated is not None
        value, result = self.packs.unguarded([self.group.argument, unrounded(target.value, target.tensor)])
        inputs = fetched(self.packs, [value], packs, self.pointers.of)
        emitter = Emitter({**inputs.names, self.packs.index: EACH}, self.pointers.of)
        (text,) = emitter.emit(value)
        take = self._each_item([*emitter.lines, self.accumulator.step("run", text), "kept[u][k] = run;"])
        load = [
            *inputs.declared,
            *self._each_pack(tile, packs, inputs.lines),
            *_each(packs, [f"own[u] = {self.accumulator.first};"]),
            *self._each_pack(tile, packs, [f"{self.part} run = {self.accumulator.first};", *take, "own[u] = run;"]),
        ]
        return load, self._each_pack(tile, packs, self._written(result))

    def _written(self, value: Term) -> list[str]:
        (target,) = self.group.targets
        assert self.group.accumulated is not None
        emitter = Emitter({self.group.accumulated: "result", self.packs.index: EACH}, self.pointers.of, "v")
        places = Emitter({self.packs.index: FIRST}, self.pointers.of, "q")
        (text,) = emitter.emit(value)
        (place,) = places.emit(joined(target.tensor.offset(target_index(self.group, target))))
        each = [*self._item_result(), *emitter.lines, store("o0.items", target.tensor, "k", text)]
        return [
            f"pack<{TYPES[target.tensor.dtype]}, {self.items}> o0;",
            f"{self.part} first = ({self.part})before[u];",
            *self._each_item(each),
            *places.lines,
            f"put({self.pointers.of(target.tensor)} + {place}, o0);",
        ]

    def _item_result(self) -> list[str]:
        kind = self.accumulator.term
        return [
            f"{self.part} total = first;",
            self.accumulator.step("total", "kept[u][k]"),
            f"const {kind} result = ({kind})total;",
        ]

    def _each_item(self, body: list[str]) -> list[str]:
        """Return statements for each element of a pack, in the order of the scan."""
        lines = (
            [f"const idx {EACH} = {FIRST} + k;", *body]
            if any(re.search(rf"\b{EACH}\b", line) for line in body)
            else body
        )
        last = self.items - 1
        loop = f"int k = {last}; k >= 0; --k" if self.backwards else f"int k = 0; k <= {last}; ++k"
        return ["#pragma unroll", f"for ({loop}) {{", *statements(lines, 1), "}"]

    def _each_pack(self, tile: int, packs: int, body: list[str]) -> list[str]:
        place = f"begin + (idx)(thread + u * {WARP}) * {self.items}"
        whole = self.size % tile == 0
        if not self.backwards:
            return each_pack(packs, f"const idx {FIRST} = {place};", "" if whole else str(self.size), body)
        inside = body if whole else [f"if ({FIRST} >= 0) {{", *statements(body, 1), "}"]
        return each_pack(packs, f"const idx {FIRST} = {self.size - self.items} - ({place});", "", inside)

    def _one_by_one(self) -> tuple[list[str], list[str]]:
        """Return the statements that load a thread's elements, and those that write their totals."""
        lines, value = argument_of(self.group, self.pointers)
        found = f"const idx {self.index} = begin + (idx)thread * {self.items} + k;"
        inside = f"if ({self.index} < {self.size}) {{"
        step = self.accumulator.step("run", value)
        load = [found, inside, *statements([*lines, step], 1), "}", "kept[0][k] = run;"]
        result = [*self._item_result(), *stores(self.group, self.pointers.of, "result")]
        write = [found, inside, *statements([line.replace("[u]", "[0]") for line in result], 1), "}"]
        begin = f"{self.part} run = {self.accumulator.first};"
        kept = f"const {self.part} first = ({self.part})before[0];"
        return [begin, *self._each_item(load), "own[0] = run;"], [kept, *self._each_item(write)]


def _each(packs: int, body: list[str]) -> list[str]:
    """Return statements for each of a thread's packs."""
    return ["#pragma unroll", f"for (int u = 0; u < {packs}; ++u) {{", *statements(body, 1), "}"]
