"""The first few of an order on the ``cuda`` target: a block a row, which finds them one after the other.

Each pass over the row finds the first element behind the one that was found last; equal ones come by position. Long
orders are found by counting instead, a thread an element.
"""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import indices, order_terms
from agents.playbook.compiler.parameters import Pointers
from agents.playbook.compiler.tensors import Order
from agents.playbook.compiler.terms import make

FEW_PLACES = 64
SHARE = 8
"""Elements of a row for each that is sought, from which on passes are less work than counting."""
_EXCHANGED = ("float", "double", "int", "long long")
"""Types of registers that threads of a warp exchange."""


def is_few(group: Group, order: Order) -> bool:
    """Return whether passes over a row find its first elements soonest."""
    _, elsewhere, _ = order_terms(group, order)
    count = order.shape[-1]
    return count <= FEW_PLACES and count * SHARE <= order.length and TYPES[elsewhere.dtype] in _EXCHANGED


def first_places(group: Group, order: Order, pointers: Pointers, threads: int) -> tuple[list[str], int]:
    """Return the statements of a block of so many threads, and how many blocks there are."""
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
