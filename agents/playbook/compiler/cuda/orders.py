"""The first few of an order on the ``cuda`` target: threads of a warp, or a block, find those of a row one by one.

Elements and their positions are keys whose order is theirs, equal ones by position. Each thread keeps the first key of
each pack of its elements; the thread whose key is found reads that pack again. Where keys would not fit 64 bits or the
row is too long for that, each pass over the row finds the first element behind the one that was found last. Long orders
are found by counting instead, a thread an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.cuda.rows import SHORT_ROW, WARP, lanes_of
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices, order_terms
from agents.playbook.compiler.packs import Packs, width_of
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.tensors import Order
from agents.playbook.compiler.terms import Term, make, substituted, variable

FEW_PLACES = 64
SHARE = 8
"""Elements of a row for each that is sought, from which on passes are less work than counting."""
MOST_PACKS = 32
"""Packs of a thread whose first keys it keeps in registers."""
_EXCHANGED = ("float", "double", "int", "long long", "short", "signed char", "unsigned char")
"""Types of registers that threads of a warp exchange."""


def is_few(group: Group, order: Order) -> bool:
    """Return whether passes over a row find its first elements soonest."""
    _, elsewhere, _ = order_terms(group, order)
    count = order.shape[-1]
    return count <= FEW_PLACES and count * SHARE <= order.length and TYPES[elsewhere.dtype] in _EXCHANGED


def first_places(group: Group, order: Order, pointers: Pointers, threads: int) -> tuple[list[str], int]:
    """Return the statements of a block of so many threads, and how many blocks there are."""
    keys = Keys(group, order, pointers, threads)
    return keys.lines() if keys.fit else _by_passes(group, order, pointers, threads)


@dataclass(frozen=True)
class Keys:
    """The first few of rows by keys of 64 bits: 32 of an element, 32 of its position."""

    group: Group
    order: Order
    pointers: Pointers
    threads: int

    @cached_property
    def value(self) -> Term:
        """Element at an index along the row."""
        assert self.group.argument is not None
        return substituted([self.group.argument], {self.group.index[-1]: variable(EACH, self.order.length)})[0]

    @cached_property
    def packs(self) -> Packs:
        """Packs of neighbouring elements."""
        index = variable(EACH, self.order.length)
        return Packs(index, width_of(index, self.order.length, [self.value], []))

    @cached_property
    def lanes(self) -> int:
        """Threads of a row."""
        long = self.order.length > SHORT_ROW
        return self.threads if long else lanes_of(self.order.length, self.packs.width)

    @property
    def flight(self) -> int:
        """Packs of a thread."""
        return -(-self.order.length // (self.lanes * self.packs.width))

    @property
    def fit(self) -> bool:
        """Return whether keys fit 64 bits and a thread's registers."""
        return TYPES[self.value.dtype] not in ("double", "long long") and self.flight <= MOST_PACKS

    def lines(self) -> tuple[list[str], int]:
        """Return the statements of a block, and how many blocks there are."""
        lanes, each, flight = self.lanes, self.threads // self.lanes, self.flight
        axes = list(range(len(self.group.shape) - 1))
        rows = prod(self.group.shape[axis] for axis in axes)
        row = f"(long long)blockIdx.x * {each} + threadIdx.x / {lanes}" if each > 1 else "blockIdx.x"
        lines = [
            f"const long long row = {row};",
            *indices(self.group, "o", axes),
            f"const int lane = (int)threadIdx.x % {lanes};",
            f"unsigned long long first[{flight}], best = 0;",
            *([f"__shared__ unsigned long long bests[2][{self.threads // WARP}];"] if lanes > WARP else []),
            *self._firsts(),
            f"for (int rank = 0; rank < {self.order.shape[-1]}; ++rank) {{",
            *statements([*self._joined(), *self._stored(rows), *self._again()], 1),
            "}",
        ]
        if axes:
            lines.insert(1, f"const idx o = (idx)(row < {rows} ? row : {rows - 1});")
        return lines, -(-rows // each)

    @property
    def _key(self) -> str:
        return "fn_key(" if self.order.largest else "~fn_key("

    def _firsts(self) -> list[str]:
        """Return the statements that find the first key of each pack, and of all."""
        width, step = self.packs.width, self.packs.width * self.lanes
        (value,) = self.packs.unguarded([self.value])
        inputs = fetched(self.packs, [value], self.flight, self.pointers.of)
        emitter = Emitter({**inputs.names, self.packs.index: EACH}, self.pointers.of)
        (text,) = emitter.emit(value)
        take = [
            *emitter.lines,
            f"const unsigned key = {self._key}{text});",
            "if (at < 0 || key > highest) { highest = key; at = k; }",
        ]
        found = [
            "unsigned highest = 0;",
            "int at = -1;",
            *each_item(width, take),
            f"first[u] = (unsigned long long)highest << 32 | (unsigned)~({FIRST} + at);",
            "best = first[u] > best ? first[u] : best;",
        ]
        base = f"const idx {FIRST} = lane * {width} + u * {step};"
        limit = "" if self.order.length % (step * self.flight) == 0 else str(self.order.length)
        begin = each_pack(self.flight, base, "", ["first[u] = 0;"])
        fetch = each_pack(self.flight, base, limit, inputs.lines)
        return [*begin, *inputs.declared, *fetch, *each_pack(self.flight, base, limit, found)]

    def _joined(self) -> list[str]:
        """Return the statements that find the first key of a row."""
        lines = ["unsigned long long found = best;"]
        if self.lanes > 1:
            lines += [
                "#pragma unroll",
                f"for (int by = {min(self.lanes, WARP) // 2}; by > 0; by /= 2) {{",
                "    const unsigned long long other = across(found, by);",
                "    found = other > found ? other : found;",
                "}",
            ]
        if self.lanes > WARP:
            lines += [
                f"if (threadIdx.x % {WARP} == 0) bests[rank & 1][threadIdx.x / {WARP}] = found;",
                "__syncthreads();",
                "#pragma unroll",
                f"for (int warp = 0; warp < {self.threads // WARP}; ++warp) {{",
                "    found = bests[rank & 1][warp] > found ? bests[rank & 1][warp] : found;",
                "}",
            ]
        return lines

    def _stored(self, rows: int) -> list[str]:
        rank = make("index", "index", data="rank", low=0, high=self.order.shape[-1] - 1)
        places = Emitter({}, self.pointers.of, "v")
        (offset,) = places.emit(self.order.offset((*self.group.index[:-1], rank)))
        put = f"st({self.pointers.of(self.order)}, {offset}, (long long)(unsigned)~found);"
        return [f"if (lane == 0 && row < {rows}) {{", *statements([*places.lines, put], 1), "}"]

    def _again(self) -> list[str]:
        """Return the statements by which the thread whose key was found finds its next one."""
        width, step = self.packs.width, self.packs.width * self.lanes
        emitter = Emitter({self.packs.index: EACH}, self.pointers.of, "w")
        (text,) = emitter.emit(self.value)
        key = f"(unsigned long long)({self._key}{text})) << 32 | (unsigned)~{EACH}"
        body = [
            f"const int pack = (int)((unsigned)~found / {step});",
            f"const idx {FIRST} = lane * {width} + pack * {step};",
            "unsigned long long next = 0;",
            *each_item(
                width,
                [
                    *emitter.lines,
                    f"const unsigned long long key = {key};",
                    "if (key < found && key > next) next = key;",
                ],
            ),
            "best = 0;",
            *each_pack(
                self.flight, "", "", ["if (u == pack) first[u] = next;", "best = first[u] > best ? first[u] : best;"]
            ),
        ]
        return ["if (best == found) {", *statements(body, 1), "}"]


def _by_passes(group: Group, order: Order, pointers: Pointers, threads: int) -> tuple[list[str], int]:
    """Return the statements of a block of so many threads, and how many blocks there are, with a pass for each."""
    _, elsewhere, _ = order_terms(group, order)
    emitter = Emitter({}, pointers.of, "u")
    (value,) = emitter.emit(elsewhere)
    kind, warps = TYPES[elsewhere.dtype], threads // 32
    better = "sooner" if order.largest else "below"
    count = order.shape[-1]
    rank = make("index", "index", data="rank", low=0, high=count - 1)
    places = Emitter({}, pointers.of, "v")
    (offset,) = places.emit(order.offset((*group.index[:-1], rank)))
    axes = list(range(len(group.shape) - 1))
    rows = prod(group.shape[axis] for axis in axes)
    passed = [
        *emitter.lines,
        f"const {kind} other = {value};",
        f"const bool behind = last < 0 || {better}(last_value, other) || (!{better}(other, last_value) && q > last);",
        f"if (behind && (place < 0 || {better}(other, best))) {{ best = other; place = q; }}",
    ]
    sooner = f"{better}(its, best) || (!{better}(best, its) && at < place)"
    taken = [f"if (at >= 0 && (place < 0 || {sooner})) {{ best = its; place = at; }}"]
    body = [
        f"{kind} best = 0;",
        "int place = -1;",
        f"for (int q = threadIdx.x; q < {order.length}; q += {threads}) {{",
        *statements(passed, 1),
        "}",
        "for (int half = 16; half > 0; half /= 2) {",
        f"    const {kind} its = __shfl_xor_sync(0xffffffffu, best, half);",
        "    const int at = __shfl_xor_sync(0xffffffffu, place, half);",
        *statements(taken, 1),
        "}",
        "if (threadIdx.x % 32 == 0) {",
        "    bests[threadIdx.x / 32] = best;",
        "    places[threadIdx.x / 32] = place;",
        "}",
        "__syncthreads();",
        f"for (int warp = 0; warp < {warps}; ++warp) {{",
        f"    const {kind} its = bests[warp];",
        "    const int at = places[warp];",
        *statements(taken, 1),
        "}",
        "__syncthreads();",
        "last = place;",
        "last_value = best;",
        *places.lines,
        f"if (threadIdx.x == 0) st({pointers.of(order)}, {offset}, (long long)last);",
    ]
    lines = [
        *(["const long long o = blockIdx.x;", *indices(group, "o", axes)] if axes else []),
        f"__shared__ {kind} bests[{warps}];",
        f"__shared__ int places[{warps}];",
        "int last = -1;",
        f"{kind} last_value = 0;",
        f"for (int rank = 0; rank < {count}; ++rank) {{",
        *statements(body, 1),
        "}",
    ]
    return lines, rows
