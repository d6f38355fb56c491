"""Results of products in tiles: from a block's sums in shared memory to the result's own order in memory.

Neighbours in memory lie side by side in shared memory too. They are computed and stored in packs of up to 16 bytes
where the result's offsets allow that, else one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.maps import computed, values_and_places
from agents.playbook.compiler.cuda.operands import THREADS
from agents.playbook.compiler.cuda.packs import EACH, FIRST, fetched
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.packs import UNKNOWN, Packs, width_of
from agents.playbook.compiler.parameters import Pointers, values
from agents.playbook.compiler.products import Product, by_row
from agents.playbook.compiler.tensors import Tensor
from agents.playbook.compiler.terms import Term, substituted, unravel, variable

AT_ONCE = 8
"""Results of a thread that are computed before they are stored: what they load is under way together."""
PACKS = 2
"""Packs of a thread whose loads are under way together."""


IN_QUAD = 8
"""Neighbouring sums that each of four threads has in the end."""

QUADS = """
__device__ __forceinline__ void exchange(float (&v)[8]) {  // four threads: pair p of the thread q becomes pair q of p
    #pragma unroll
    for (int s = 1; s < 4; s *= 2) {
        const bool upper = threadIdx.x & s;
        #pragma unroll
        for (int e = 0; e < 8; ++e) {
            if (e / 2 & s) continue;
            const float other = __shfl_xor_sync(0xffffffff, upper ? v[e] : v[e + 2 * s], s);
            if (upper) v[e] = other;
            else v[e + 2 * s] = other;
        }
    }
}
"""


@dataclass(frozen=True)
class _Packed:
    """Results as packs of neighbours."""

    packs: Packs
    targets: list[Term]
    stored: list[tuple[Term, Tensor]]


@dataclass(frozen=True)
class Results:
    """The way of a tile's sums to the result."""

    group: Group
    product: Product
    m: int
    n: int

    @property
    def _by_row(self) -> bool:
        return by_row(self.group, self.product)

    @property
    def _sides(self) -> tuple[int, int]:
        """Return the sums that are neighbours in memory, and how many rows of them a tile has."""
        return (self.n, self.m) if self._by_row else (self.m, self.n)

    @property
    def _pitch(self) -> int:
        """Return the floats from one row of sums to the next."""
        return self._sides[0] + 4

    @property
    def shared_bytes(self) -> int:
        """Return the bytes that the sums of a tile take."""
        return self._sides[1] * self._pitch * 4

    def place(self, row: str, column: str) -> str:
        """Return the place of a sum in shared memory."""
        outer, inner = (row, column) if self._by_row else (column, row)
        return f"({outer}) * {self._pitch} + {inner}"

    def written(self, pointers: Pointers) -> list[str]:
        """Return the statements that write what lies in shared memory, as ``sums``."""
        packed = self._in_packs(pointers)
        return ["__syncthreads();", *(self._one_by_one(pointers) if packed is None else packed)]

    def _found(self, width: int) -> list[str]:
        """Return the statements that find the results of a pack with number ``e``."""
        line, other = ("column", "row") if self._by_row else ("row", "column")
        in_row = self._sides[0] // width
        times = f" * {width}" if width > 1 else ""
        return [
            f"const int in_{line} = e % {in_row}{times};",
            f"const int in_{other} = e / {in_row};",
            "const int m = m0 + in_row;",
            "const int n = n0 + in_column;",
        ]

    @property
    def _inside(self) -> str:
        """Return the condition that the result at ``m`` and ``n`` exists."""
        _, rows, columns = self.product.sizes(self.group)
        parts = [f"m < {rows}"] if rows % self.m else []
        parts += [f"n < {columns}"] if columns % self.n else []
        return " && ".join(parts) or "true"

    def _in_packs(self, pointers: Pointers) -> list[str] | None:
        """Return the statements for packs of neighbours; None where there are none."""
        found = self._packed
        if found is None:
            return None
        total = self.m * self.n // found.packs.width
        place = f"sums[{self.place('in_row', 'in_column')} + k]"
        where = [f"const int e = start + u * {THREADS};", *self._found(found.packs.width)]
        last = f" && e < {total}" if total % (THREADS * PACKS) else ""
        body = self._stored(found, [place], where, last, pointers)
        head = f"for (int start = threadIdx.x; start < {total}; start += {THREADS * PACKS}) {{"
        return [head, *statements(body, 1), "}"]

    @cached_property
    def _packed(self) -> _Packed | None:
        """Return how results are stored in packs of neighbours; None where they are not."""
        group, product = self.group, self.product
        along = product.columns if self._by_row else product.rows
        if any(target.inside is not None for target in group.targets) or group.accumulated is None:
            return None
        count = prod(group.shape[axis] for axis in along)
        index = variable(EACH, count)
        own = unravel(index, [group.shape[axis] for axis in along])
        table = {
            group.index[axis]: term for axis, term in zip(along, own, strict=True) if group.index[axis].op == "index"
        }
        targets, offsets = values_and_places(group)
        terms = substituted([*targets, *offsets], table)
        targets, offsets = terms[: len(targets)], terms[len(targets) :]
        stored = [(offset, target.tensor) for offset, target in zip(offsets, group.targets, strict=True)]
        width = width_of(index, count, targets, stored)
        if width == 1 or self._sides[0] % width:
            return None
        packs = Packs(index, width, dict.fromkeys(group.sums, UNKNOWN))
        return _Packed(packs, packs.unguarded(targets), stored)

    @property
    def _of_quad(self) -> list[str]:
        """Return the statements that find a thread's pack ``u`` of the columns ``g``."""
        return [
            "const int m = m0 + row + warp % 4 * 16 + u * 8 + lane / 4;",
            f"const int n = n0 + column + g * {4 * IN_QUAD} + lane % 4 * {IN_QUAD};",
        ]

    def _stored(self, found: _Packed, sums: list[str], where: list[str], last: str, pointers: Pointers) -> list[str]:
        """Return the statements that store some packs, whose sums have a text, found by statements for pack ``u``."""
        group, packs = self.group, found.packs
        line, other, others = ("n", "m", self.product.rows) if self._by_row else ("m", "n", self.product.columns)
        inputs = fetched(packs, found.targets, PACKS, pointers.of)
        declared = [*where, f"const idx {FIRST} = {line};", *indices(group, other, others)]
        names = {**inputs.names, **dict(zip(group.sums, sums, strict=True))}

        def each(body: list[str]) -> list[str]:
            inside = [f"if ({self._inside}{last}) {{", *statements(body, 1), "}"]
            lines = _needed(declared, inside)
            return ["#pragma unroll", f"for (int u = 0; u < {PACKS}; ++u) {{", *statements(lines, 1), "}"]

        return [
            *inputs.declared,
            *(each(inputs.lines) if inputs.lines else []),
            *each(computed(packs, names, found.targets, found.stored, pointers)),
        ]

    @property
    def from_registers(self) -> bool:
        """Return whether results go to memory from the registers of a warpgroup: of 16 bits, in packs along rows."""
        return self._packed is not None and self._by_row and self._packed.packs.width == IN_QUAD

    def written_from_registers(self, columns: int, pointers: Pointers) -> list[str]:
        """Return the statements that store a warpgroup's sums ``run``: 64 rows, so many columns of each product."""
        found = self._packed
        assert found is not None
        taken = [f"v{s}" for s in range(len(self.group.sums))]
        body = [
            *(f"float {name}[{PACKS}][{IN_QUAD}];" for name in taken),
            "#pragma unroll",
            f"for (int u = 0; u < {PACKS}; ++u) {{",
            "    #pragma unroll",
            f"    for (int e = 0; e < {IN_QUAD}; ++e) {{",
            "        const int of = g * 16 + e / 2 * 4 + u * 2 + e % 2;",
            *(f"        {name}[u][e] = run[of + {s * columns // 2}];" for s, name in enumerate(taken)),
            "    }",
            *(f"    exchange({name}[u]);" for name in taken),
            "}",
            *self._stored(found, [f"{name}[u][k]" for name in taken], self._of_quad, "", pointers),
        ]
        return ["#pragma unroll", f"for (int g = 0; g < {columns // 32}; ++g) {{", *statements(body, 1), "}"]

    def _one_by_one(self, pointers: Pointers) -> list[str]:
        """Return the statements for results of which each is stored by itself.

        A thread keeps its place along the results that are neighbours, and with it these indices.
        """
        near, far = (("n", self.product.columns, self.n), ("m", self.product.rows, self.m))
        if not self._by_row:
            near, far = far, near
        lanes = min(near[2], THREADS)
        beside, sets = THREADS // lanes, -(-near[2] // lanes)
        start, own = f"threadIdx.x / {lanes}", f"threadIdx.x % {lanes}{f' + s * {THREADS}' if sets > 1 else ''}"
        if lanes * beside < THREADS:
            start = f"threadIdx.x < {lanes * beside} ? {start} : {far[2]}"
        lines = [
            f"const int near = {own}, {near[0]} = {near[0]}0 + near;",
            *indices(self.group, near[0], near[1]),
            f"for (int base = {start}; base < {far[2]}; base += {beside * AT_ONCE}) {{",
            *statements(self._some(pointers, far, beside), 1),
            "}",
        ]
        return [f"for (int s = 0; s < {sets}; ++s) {{" if sets > 1 else "{", *statements(lines, 1), "}"]

    def _some(self, pointers: Pointers, far: tuple[str, list[int], int], beside: int) -> list[str]:
        """Return the statements that compute some results of a thread, and then store them."""
        name, axes, count = far
        row, column = ("far", "near") if name == "m" else ("near", "far")
        last = f" && far < {count}" if count % (beside * AT_ONCE) else ""
        lines, held = values(self.group, pointers.of, "result")
        inside = [
            *indices(self.group, name, axes),
            f"const float result = sums[{self.place(row, column)}];",
            *lines,
            *(f"held{t}[u] = {each.value}, at{t}[u] = {each.offset};" for t, each in enumerate(held)),
            *(f"inside{t}[u] = {each.inside};" for t, each in enumerate(held) if each.inside),
        ]
        return [
            *(f"{each.kind} held{t}[{AT_ONCE}]; idx at{t}[{AT_ONCE}];" for t, each in enumerate(held)),
            f"bool inside[{AT_ONCE}];",
            *(f"bool inside{t}[{AT_ONCE}];" for t, each in enumerate(held) if each.inside),
            "#pragma unroll",
            f"for (int u = 0; u < {AT_ONCE}; ++u) {{",
            f"    const int far = base + u * {beside}, {name} = {name}0 + far;",
            f"    inside[u] = {self._inside}{last};",
            "    if (inside[u]) {",
            *statements(inside, 2),
            "    }",
            "}",
            "#pragma unroll",
            f"for (int u = 0; u < {AT_ONCE}; ++u) {{",
            *(
                f"    if (inside[u]{f' && inside{t}[u]' if each.inside else ''})"
                f" st({each.pointer}, at{t}[u], held{t}[u]);"
                for t, each in enumerate(held)
            ),
            "}",
        ]


def _needed(declarations: list[str], body: list[str]) -> list[str]:
    """Return the declarations that statements need, and the statements."""
    lines = list(body)
    for line in reversed(declarations):
        names = re.findall(r"(\w+) = ", line)
        if any(re.search(rf"\b{name}\b", other) for name in names for other in lines):
            lines.insert(0, line)
    return lines
