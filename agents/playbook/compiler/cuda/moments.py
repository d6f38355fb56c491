"""Sums and squared deviations in one pass on the ``cuda`` target: a block a part of a result's terms, then their union.

A thread finds the sum of a run of terms in double and their squared deviations from the run's own mean, while it holds
them in registers. Sums of runs, of their squares by their lengths, and of deviations give those of all terms.
"""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.cuda.packs import EACH, FIRST, each_item, each_pack, fetched
from agents.playbook.compiler.cuda.rows import WARP, Rows
from agents.playbook.compiler.emission import Emitter, statements
from agents.playbook.compiler.groups import Group, Program
from agents.playbook.compiler.loops import indices
from agents.playbook.compiler.moments import Moments
from agents.playbook.compiler.parameters import Pointers, store_of, target_index, unrounded
from agents.playbook.compiler.tensors import Reduce

SUMS = ("total", "within", "between")
"""Names of the sum of all terms, of runs' squared deviations, and of the squares of runs' sums by their lengths."""
PART = 8192
"""Terms from which on a part of a result keeps a block busy."""
ENOUGH_BLOCKS = 1024
MOST_PARTS = 1024


def is_side_by_side(group: Group, reduction: Reduce) -> bool:
    """Return whether neighbouring threads read neighbouring terms."""
    return Rows(group, reduction, Pointers(Program([]), "")).side_by_side


def parts_of(group: Moments) -> int:
    """Return the parts of each result."""
    assert isinstance(group.source, Reduce)
    return min(MOST_PARTS, -(-prod(group.source.extents) // PART), max(1, -(-ENOUGH_BLOCKS // prod(group.shape))))


def partial_bytes(group: Moments) -> int:
    """Return the bytes of the sums of all parts."""
    return 8 * len(SUMS) * prod(group.shape) * parts_of(group)


def moments(group: Moments, pointers: Pointers, base: int, block: int) -> list[tuple[str, list[str], int]]:
    """Return the launches' endings, statements of a block, and blocks; sums of parts lie from ``base`` on."""
    assert isinstance(group.source, Reduce)
    rows, parts, results = Rows(group, group.source, pointers), parts_of(group), prod(group.shape)
    align = WARP * rows.packs.width
    size = -(-rows.terms // (parts * align)) * align
    partial = f"double* partial = (double*)(arena + {base}LL);"
    share = [
        partial,
        *_indices(group, f"blockIdx.x / {parts}"),
        f"const idx first = (idx)(blockIdx.x % {parts}) * {size};",
        f"const idx end = first + {size} < {rows.terms} ? first + {size} : {rows.terms};",
        *_zeros(),
        *_of_runs(rows, block, whole=rows.terms == size * parts, size=size),
        *_joined(block),
        "if (threadIdx.x != 0) return;",
        *(f"partial[blockIdx.x * 3LL + {at}] = {name};" for at, name in enumerate(SUMS)),
    ]
    union = [
        partial,
        *_indices(group, "blockIdx.x"),
        *_zeros(),
        f"for (int p = (int)threadIdx.x; p < {parts}; p += {block}) {{",
        *statements(
            [f"{name} += partial[(blockIdx.x * {parts}LL + p) * 3 + {at}];" for at, name in enumerate(SUMS)], 1
        ),
        "}",
        *_joined(block),
        "if (threadIdx.x != 0) return;",
        f"const double apart = between - total * total / {rows.terms};",
        "const float result = (float)total;",
        "const float squares = (float)(within + (apart < 0 ? 0 : apart));",
        *_stored(group, pointers),
    ]
    return [("_parts", share, results * parts), ("_union", union, results)]


def _indices(group: Moments, block: str) -> list[str]:
    found = indices(group, "o", list(range(len(group.shape))))
    return [f"const idx o = (idx)({block});", *found] if found else []


def _zeros() -> list[str]:
    return [f"double {', '.join(f'{name} = 0' for name in SUMS)};"]


def _of_runs(rows: Rows, block: int, *, whole: bool, size: int) -> list[str]:
    """Return the statements by which a thread takes in the runs of its part."""
    packs, width = rows.packs, rows.packs.width
    (value,) = packs.unguarded([rows.argument(packs.index)])
    flight = rows.flight(value, -(-size // (width * block)))
    inputs = fetched(packs, [value], flight, rows.pointers.of)
    emitter = Emitter({**inputs.names, packs.index: EACH}, rows.pointers.of)
    (text,) = emitter.emit(value)
    step = width * block * flight
    limit = "" if whole and size % step == 0 else "end"
    found = f"const idx {FIRST} = b + u * {block * width};"
    take = [*emitter.lines, f"item[u][k] = {text};", "sum += item[u][k];"]
    away = ["const float away = item[u][k] - mean;", "run += away * away;"]
    body = [
        *inputs.declared,
        *(each_pack(flight, found, limit, inputs.lines) if inputs.lines else []),
        f"float item[{flight}][{width}], run = 0;",
        "double sum = 0;",
        *(["int count = 0;"] if limit else [f"const int count = {width * flight};"]),
        *each_pack(flight, found, limit, [*each_item(width, take), *([f"count += {width};"] if limit else [])]),
        "const double middle = sum / count;",
        "const float mean = (float)middle;",
        *each_pack(flight, found, limit, each_item(width, away)),
        "total += sum;",
        "within += run;",
        "between += sum * middle;",
    ]
    head = f"for (idx b = first + (int)threadIdx.x * {width}; b < end; b += {step}) {{"
    return [head, *statements(body, 1), "}"]


def _joined(block: int) -> list[str]:
    """Return the statements by which the sums of a block's threads become those of each."""
    warps = block // WARP
    return [
        "#pragma unroll",
        f"for (int by = {WARP // 2}; by > 0; by /= 2) {{",
        *statements([f"{name} += across({name}, by);" for name in SUMS], 1),
        "}",
        f"__shared__ double sums[{len(SUMS)}][{warps}];",
        f"if (threadIdx.x % {WARP} == 0) {{",
        *statements([f"sums[{at}][threadIdx.x / {WARP}] = {name};" for at, name in enumerate(SUMS)], 1),
        "}",
        "__syncthreads();",
        f"{' = '.join(SUMS)} = 0;",
        "#pragma unroll",
        f"for (int warp = 0; warp < {warps}; ++warp) {{",
        *statements([f"{name} += sums[{at}][warp];" for at, name in enumerate(SUMS)], 1),
        "}",
    ]


def _stored(group: Moments, pointers: Pointers) -> list[str]:
    assert group.accumulated is not None
    emitter = Emitter({group.accumulated: "result", group.squares: "squares"}, pointers.of, "v")
    put = list[str]()
    for target in group.targets:
        offset = target.tensor.offset(target_index(group, target))
        text, place = emitter.emit(unrounded(target.value, target.tensor), offset)
        put.append(store_of(target, pointers.of, place, text))
    return [*emitter.lines, *put]
