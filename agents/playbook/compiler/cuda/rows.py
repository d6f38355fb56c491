"""Reductions on the ``cuda`` target whose terms several threads share: a row a block, or several rows a warp.

Rows that lie side by side in memory are read in packs. Totals are joined by shuffles within a warp, and through shared
memory between the warps of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.packs import Packs, item_bytes, loads_in, width_of
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.shapes_of_work import depends, is_contiguous, operations, strides_along
from agents.playbook.compiler.tensors import Reduce
from agents.playbook.compiler.terms import Term, substituted, unravel, variable

WARP = 32
SHORT = 64
"""Terms up to which a warp would have too little to do for a result, unless it reads packs."""
LEAST_COLUMNS = 8
"""Neighbouring results from which on reading the same term of each is worth while."""
SHORT_ROW = 1024
"""Terms up to which a warp or a part of it takes a row."""
RUN = 32
"""Terms that a thread adds in float32 before they go to a double."""
FETCHED_BYTES = 128
"""Bytes in flight that leave a thread enough registers for the rest."""
MOST_PACKS = 8
"""Packs that a thread has in flight."""
LARGEST_BODY = 600
"""Operations of an unrolled loop that compilers take in little time and that fit an instruction cache."""


def lanes_of(length: int, width: int) -> int:
    """Return how many threads of a warp share a short row, of packs so wide: a power of two."""
    lanes = 1
    while lanes < WARP and lanes * 2 * width < length:
        lanes *= 2
    return lanes


@dataclass(frozen=True)
class Threads:
    """Threads that share a result's terms."""

    count: int
    lane: str
    """C++ text of a thread's place among them."""


@dataclass(frozen=True)
class Part:
    """Terms of a result that threads share."""

    first: str
    """C++ text of the first of them and a plus sign; empty where it is the first of all."""
    high: str
    """C++ text of the end of them."""
    length: int
    """Largest number of them."""
    even: bool
    """True where every part has so many."""


@dataclass(frozen=True)
class Rows:
    """A reduction and how its terms lie in memory."""

    group: Group
    reduction: Reduce
    pointers: Pointers

    @property
    def accumulator(self) -> Accumulator:
        """Return the state of the reduction."""
        return Accumulator(self.reduction.kind, self.reduction.value)

    @property
    def terms(self) -> int:
        """Return the number of terms of a result."""
        return prod(self.reduction.extents)

    @cached_property
    def packs(self) -> Packs:
        """Packs of neighbouring terms; of one where some load would not be wide."""
        index = variable(EACH, self.terms)
        argument = self.argument(index)
        width = width_of(index, self.terms, [argument], []) if self.terms > 1 else 1
        packs = Packs(index, width)
        apart = [
            load
            for load in loads_in(packs.unguarded([argument]))
            if not packs.stays(load) and not packs.is_wide_load(load)
        ]
        return Packs(index, 1) if apart or width * self._operations > LARGEST_BODY else packs

    @property
    def side_by_side(self) -> bool:
        """Return whether neighbouring threads should take neighbouring terms."""
        extents = self.reduction.extents
        if self.packs.width > 1 or self.terms <= SHORT or extents[-1] < WARP:
            return self.packs.width > 1
        return is_contiguous(self.group, self.group.inner[-1])

    @property
    def columns(self) -> bool:
        """Return whether neighbouring threads should take neighbouring results."""
        index, shape = self.group.index, self.group.shape
        if self.terms <= SHORT or self.side_by_side or not shape or shape[-1] < LEAST_COLUMNS:
            return False
        return is_contiguous(self.group, index[-1]) and 1 in strides_along(self.group, index[-1])

    @property
    def in_warp(self) -> int:
        """Threads of a warp that share a row; 0 where a row is long, or does not lie side by side."""
        if self.terms > SHORT_ROW or not self.side_by_side:
            return 0
        return WARP if self.packs.width == 1 else lanes_of(self.terms, self.packs.width)

    def total(self, threads: Threads, part: Part) -> list[str]:
        """Return the statements by which each thread makes the ``total`` of its share of a part's terms."""
        begin = [f"{self.accumulator.total} total = {self.accumulator.first};"]
        begin += ["long long place = 0;"] if self.accumulator.places else []
        return [*begin, *self._in_packs(threads, part)]

    @cached_property
    def _operations(self) -> int:
        return max(1, operations(self.group) // (prod(self.group.shape) * self.terms))

    def argument(self, index: Term) -> Term:
        """Return the term at an index over all terms of a result."""
        assert self.group.argument is not None
        found = zip(self.group.inner, unravel(index, self.reduction.extents), strict=True)
        return substituted([self.group.argument], {old: new for old, new in found if old.op == "index"})[0]

    def _in_packs(self, threads: Threads, part: Part) -> list[str]:
        packs, width = self.packs, self.packs.width
        (value,) = packs.unguarded([self.argument(packs.index)])
        flight = self.flight(value, -(-part.length // (width * threads.count)))
        inputs = fetched(packs, [value], flight, self.pointers.of)
        emitter = Emitter({**inputs.names, packs.index: EACH}, self.pointers.of)
        (text,) = emitter.emit(value)
        chunked = self.accumulator.chunked
        take = [f"run += {text};"] if chunked else _taken(self.accumulator, text, EACH)
        compute = each_item(width, [*emitter.lines, *take])
        size = width * threads.count * flight
        limit = "" if part.even and part.length % size == 0 else part.high
        found = f"const idx {FIRST} = b + u * {threads.count * width};"
        body = [
            *inputs.declared,
            *(each_pack(flight, found, limit, inputs.lines) if inputs.lines else []),
            *(["float run = 0;"] if chunked else []),
            *each_pack(flight, found, limit, compute),
            *(["total += run;"] if chunked else []),
        ]
        low = f"{part.first}{threads.lane} * {width}"
        if part.length <= size:
            return ["{", *statements([f"const idx b = {low};", *body], 1), "}"]
        return [f"for (idx b = {low}; b < {part.high}; b += {size}) {{", *statements(body, 1), "}"]

    def flight(self, value: Term, most: int) -> int:
        """Return the packs that a thread has in flight."""
        width, index = self.packs.width, self.packs.index
        each = width * sum(item_bytes(load.data) for load in loads_in([value]) if depends(load, index))
        most = min(most, MOST_PACKS, RUN // width, FETCHED_BYTES // max(1, each))
        return max(1, min(most, LARGEST_BODY // (width * self._operations)))


def _taken(accumulator: Accumulator, value: str, place: str) -> list[str]:
    """Return the statements that take a term in."""
    if not accumulator.places:
        return [accumulator.step("total", value)]
    return [
        f"const {accumulator.term} term = {value};",
        f"if ({accumulator.better()}(term, total)) {{ total = term; place = (long long){place}; }}",
    ]


def union(accumulator: Accumulator, value: str, place: str) -> list[str]:
    """Return the statements that take in another total, and its place where that counts."""
    if not accumulator.places:
        return [accumulator.step("total", value)]
    same = f"({value} == total || ({value} != {value} && total != total))"
    return [
        f"if ({accumulator.better()}({value}, total) || ({same} && {place} < place)) {{",
        f"    total = {value}; place = {place};",
        "}",
    ]


def joined_in_warp(accumulator: Accumulator, lanes: int = WARP) -> list[str]:
    """Return the statements by which the totals of neighbouring threads of a warp become the total of each."""
    if lanes == 1:
        return []
    body = [
        f"const {accumulator.total} other = across(total, by);",
        *(["const long long other_place = across(place, by);"] if accumulator.places else []),
        *union(accumulator, "other", "other_place"),
    ]
    return ["#pragma unroll", f"for (int by = {lanes // 2}; by > 0; by /= 2) {{", *statements(body, 1), "}"]


def joined_in_block(accumulator: Accumulator, block: int) -> list[str]:
    """Return the statements by which the totals of a block's threads become the total of each."""
    places, warps = accumulator.places, block // WARP
    return [
        *joined_in_warp(accumulator),
        f"__shared__ {accumulator.total} totals[{warps}];",
        *([f"__shared__ long long places[{warps}];"] if places else []),
        f"if (threadIdx.x % {WARP} == 0) {{",
        f"    totals[threadIdx.x / {WARP}] = total;",
        *([f"    places[threadIdx.x / {WARP}] = place;"] if places else []),
        "}",
        "__syncthreads();",
        "total = totals[0];",
        *(["place = places[0];"] if places else []),
        "#pragma unroll",
        f"for (int warp = 1; warp < {warps}; ++warp) {{",
        *statements(union(accumulator, "totals[warp]", "places[warp]"), 1),
        "}",
    ]


def joined_in_columns(accumulator: Accumulator, lanes: int) -> list[str]:
    """Return the statements by which the totals of a block's threads with equal ``column`` become that of lane 0."""
    places = accumulator.places
    return [
        f"__shared__ {accumulator.total} totals[{lanes}][{WARP}];",
        *([f"__shared__ long long places[{lanes}][{WARP}];"] if places else []),
        "totals[lane][column] = total;",
        *(["places[lane][column] = place;"] if places else []),
        "__syncthreads();",
        "if (lane != 0) return;",
        "#pragma unroll",
        f"for (int other = 1; other < {lanes}; ++other) {{",
        *statements(union(accumulator, "totals[other][column]", "places[other][column]"), 1),
        "}",
    ]
