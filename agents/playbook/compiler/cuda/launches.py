"""Launches for the ``cuda`` target: which form a group takes, and those with a thread an element or a result."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.attention import Attention
from agents.playbook.compiler.cuda.attention import block_of
from agents.playbook.compiler.cuda.filtering import filtering_of
from agents.playbook.compiler.cuda.fused_rows import RowBlocks
from agents.playbook.compiler.cuda.maps import in_packs, memory_order
from agents.playbook.compiler.cuda.moments import moments, partial_bytes
from agents.playbook.compiler.cuda.orders import first_places, is_few
from agents.playbook.compiler.cuda.rows import (
    SHORT,
    WARP,
    Part,
    Rows,
    Threads,
    joined_in_block,
    joined_in_columns,
    joined_in_warp,
    union,
)
from agents.playbook.compiler.cuda.scans import Row
from agents.playbook.compiler.cuda.sliding import Sliding
from agents.playbook.compiler.cuda.strips import strip_of
from agents.playbook.compiler.cuda.tiles import Tiles, tiled
from agents.playbook.compiler.cuda.transposes import in_tiles, transpose_of
from agents.playbook.compiler.cuda.wide_transposes import in_wide_tiles, is_wide
from agents.playbook.compiler.cuda.windows import window_of
from agents.playbook.compiler.cuda.work import BLOCK, Cuda
from agents.playbook.compiler.emission import statements
from agents.playbook.compiler.fused import FusedRows
from agents.playbook.compiler.groups import Group, Program
from agents.playbook.compiler.loops import argument_of, indices, loops, order_body, position
from agents.playbook.compiler.moments import Moments
from agents.playbook.compiler.parameters import Pointers, brought, first_values, stores
from agents.playbook.compiler.preludes import prelude, trimmed
from agents.playbook.compiler.products import product_of
from agents.playbook.compiler.shapes_of_work import chunk_level
from agents.playbook.compiler.tensors import Reduce, Scan, Scatter
from cupilot.domain.kernel import MAX_LAUNCHES, MAX_TENSOR_MAPS, Launch, Tunable
from cupilot.domain.tensor_map import TensorMap

ENOUGH_THREADS = 65536
"""Results from which on a thread each keeps a card busy."""
ENOUGH_BLOCKS = 512
PART = 8192
"""Terms from which on a part of a result keeps a block busy."""
MOST_PARTS = 1024
COLUMN_PART = 512
"""Terms of neighbouring results from which on a part of them keeps a block busy."""
FEW_PARTS = 16
"""Parts that a thread joins alone."""
WHOLE_BLOCK = Threads(BLOCK, "(int)threadIdx.x")


def render(
    program: Program, pointers: Pointers, index_type: str, tiles: Tiles | None
) -> tuple[str, list[Launch], dict[str, Tunable], int, list[TensorMap]]:
    """Return the source, the launches, their tunables, the bytes of workspace and the tensor maps of a program."""
    work = Cuda(program, pointers, program.workspace_bytes, tiles)
    for place, group in enumerate(program.groups):
        name = f"group{place}"
        if isinstance(group, Attention) and tiles is not None:
            work.add_tiled(name, group, block_of(group, tiles.precision).tiled(pointers))
        elif isinstance(group, FusedRows):
            work.add(name, group, *RowBlocks(group, pointers).lines())
        elif isinstance(group, Moments):
            for ending, lines, blocks in moments(group, pointers, program.workspace_bytes, BLOCK):
                work.add(f"{name}{ending}", group, lines, blocks, extra=True)
            work.workspace_bytes = max(work.workspace_bytes, program.workspace_bytes + partial_bytes(group))
        elif group.source is None:
            _map(work, name, group)
        elif isinstance(group.source, Reduce):
            _reduction(work, name, group, group.source)
        elif isinstance(group.source, Scan):
            work.add(name, group, *Row(group, group.source, pointers, BLOCK).lines())
        elif isinstance(group.source, Scatter):
            _scatter(work, name, group, group.source)
        elif is_few(group, group.source):
            work.add(name, group, *first_places(group, group.source, pointers, BLOCK))
        else:
            lines = order_body(group, group.source, pointers)
            _each(work, name, group, prod(group.shape), lines)
    maps = [item for part in work.parts for item in part.maps]
    too_many = len(work.parts) > MAX_LAUNCHES or len(maps) > MAX_TENSOR_MAPS
    if tiles is not None and too_many and (maps or tiles.filtering):
        return render(program, pointers, index_type, replace(tiles, by_maps=False, filtering=None))
    kernels, launches, tunables = work.kernels()
    body = "\n\n".join(kernels)
    barrier = "#include <cooperative_groups.h>\n" if tunables else ""
    body = "\n\n".join([*work.functions, body])
    text = f'#include "problem.h"\n{barrier}{trimmed(prelude(index_type, cuda=True), body)}\n\n{body}\n'
    return text, launches, tunables, work.workspace_bytes, maps


def _each(work: Cuda, name: str, group: Group, count: int, body: list[str], *, extra: bool = False) -> None:
    """Add a launch with a thread an element; those of a map are neighbours in the result's memory."""
    axes = memory_order(group) if group.source is None else list(range(len(group.shape)))
    lines = [
        f"const long long o = (long long)blockIdx.x * {BLOCK} + threadIdx.x;",
        f"if (o >= {count}LL) return;",
        *indices(group, "o" if count >= 2**31 else "(int)o", axes),
        *body,
    ]
    work.add(name, group, lines, -(-count // BLOCK), extra=extra)


def _map(work: Cuda, name: str, group: Group) -> None:
    transpose = transpose_of(group)
    if transpose is not None:
        form = in_wide_tiles if is_wide(group, transpose) else in_tiles
        work.add(name, group, *form(group, transpose, work.pointers, BLOCK))
        return
    packed = in_packs(group, work.pointers, BLOCK)
    if packed is not None:
        work.add(name, group, *packed)
        return
    _each(work, name, group, prod(group.shape), stores(group, work.pointers.of, ""))


def _scatter(work: Cuda, name: str, group: Group, scatter: Scatter) -> None:
    """Add two launches: the values of elements that no item comes to, and the items, whose order does not matter."""
    fill = [
        f"const long long o = (long long)blockIdx.x * {BLOCK} + threadIdx.x;",
        f"if (o < {scatter.size}LL) {first_values(scatter, work.pointers.of)}",
    ]
    work.add(f"{name}_first", group, fill, -(-scatter.size // BLOCK))
    _each(work, name, group, prod(group.shape), brought(group, scatter, work.pointers.of))


def _reduction(work: Cuda, name: str, group: Group, reduction: Reduce) -> None:
    results, terms = prod(group.shape), prod(reduction.extents)
    product = product_of(group) if work.tiles is not None else None
    filtering = filtering_of(group, work.tiles)
    if filtering is not None:
        base = work.program.workspace_bytes
        work.add_tiled(f"{name}_filters", group, filtering.panels(work.pointers, base), extra=True)
        work.add_tiled(name, group, filtering.filtered(work.pointers, base), extra=True)
        work.workspace_bytes = max(work.workspace_bytes, base + filtering.panel_bytes)
        return
    if product is not None and work.tiles is not None:
        work.add_tiled(name, group, tiled(group, reduction, product, work.tiles, work.pointers))
        return
    window = window_of(group)
    if window is not None:
        work.add_tiled(name, group, Sliding(strip_of(window), work.pointers, BLOCK).tiled())
        return
    accumulator = Accumulator(reduction.kind, reduction.value)
    rows = Rows(group, reduction, work.pointers)
    if rows.in_warp:
        work.add(name, group, *_in_warps(rows, rows.in_warp))
        return
    if terms <= SHORT or (results >= ENOUGH_THREADS and not rows.side_by_side):
        body = [*one_result(group, reduction, accumulator, work.pointers), *stores(group, work.pointers.of, "result")]
        _each(work, name, group, results, body)
        return
    if rows.columns:
        _in_columns(work, name, rows)
        return
    parts = min(MOST_PARTS, -(-terms // PART), max(1, -(-ENOUGH_BLOCKS // results)))
    if parts == 1:
        lines = [
            *_block_indices(group, "blockIdx.x"),
            *rows.total(WHOLE_BLOCK, Part("", str(terms), terms, even=True)),
            *joined_in_block(accumulator, BLOCK),
            "if (threadIdx.x != 0) return;",
            *_result(accumulator),
            *stores(group, work.pointers.of, "result"),
        ]
        work.add(name, group, lines, results)
        return
    _in_parts(work, name, rows, parts)


def _block_indices(group: Group, block: str) -> list[str]:
    found = indices(group, "o", list(range(len(group.shape))))
    return [f"const idx o = (idx)({block});", *found] if found else []


def one_result(group: Group, reduction: Reduce, accumulator: Accumulator, pointers: Pointers) -> list[str]:
    """Return the statements by which one thread reduces one result."""
    lines, value = argument_of(group, pointers)
    names = [f"r{axis}" for axis in range(len(reduction.extents))]
    begin = [f"{accumulator.total} total = {accumulator.first};"]
    if accumulator.places:
        body = [*lines, *_placed(accumulator, value, position(reduction, names))]
        return [*begin, "long long place = 0;", *loops(reduction, names, body, None, ("0", "")), *_result(accumulator)]
    if accumulator.chunked:
        chunk = (chunk_level(reduction.extents), "float run = 0;", "total += run;")
        inner = loops(reduction, names, [*lines, f"run += {value};"], chunk, ("0", ""))
    else:
        inner = loops(reduction, names, [*lines, accumulator.step("total", value)], None, ("0", ""))
    inner = [line for line in inner if "#pragma omp" not in line]
    return [*begin, *inner, *_result(accumulator)]


def _placed(accumulator: Accumulator, value: str, place: str) -> list[str]:
    return [
        f"const {accumulator.term} term = {value};",
        f"if ({accumulator.better()}(term, total)) {{ total = term; place = {place}; }}",
    ]


def _result(accumulator: Accumulator) -> list[str]:
    if accumulator.places:
        return ["const long long result = place;"]
    return [f"const {accumulator.term} result = ({accumulator.term})total;"]


def _in_warps(rows: Rows, lanes: int) -> tuple[list[str], int]:
    """Return the statements of a block with a row to so many neighbouring threads, and how many blocks there are.

    Threads beyond the last row take it too, since all of a warp take part in shuffles, and do not write.
    """
    group, results, each = rows.group, prod(rows.group.shape), BLOCK // lanes
    even = results % each == 0
    row = f"(long long)blockIdx.x * {each} + threadIdx.x / {lanes}"
    lines = [
        *([] if even else [f"const long long row = {row};"]),
        *_block_indices(group, row if even else f"row < {results} ? row : {results - 1}"),
        f"const int lane = (int)threadIdx.x % {lanes};",
        *rows.total(Threads(lanes, "lane"), Part("", str(rows.terms), rows.terms, even=True)),
        *joined_in_warp(rows.accumulator, lanes),
        f"if (lane != 0{'' if even else f' || row >= {results}'}) return;",
        *_result(rows.accumulator),
        *stores(group, rows.pointers.of, "result"),
    ]
    return lines, -(-results // each)


def _in_parts(work: Cuda, name: str, rows: Rows, parts: int) -> None:
    """Add two launches: parts of each result, and their union."""
    size = _part_size(rows, parts)
    partial = _partial(work, rows, parts)
    share = rows.total(WHOLE_BLOCK, Part("first + ", "end", size, even=rows.terms == size * parts))
    lines = [
        *partial,
        *_block_indices(rows.group, f"blockIdx.x / {parts}"),
        *_bounds(rows, f"blockIdx.x % {parts}", size, share),
        *share,
        *joined_in_block(rows.accumulator, BLOCK),
        "if (threadIdx.x != 0) return;",
        *_kept(rows, "blockIdx.x"),
    ]
    results = prod(rows.group.shape)
    work.add(f"{name}_parts", rows.group, lines, results * parts, extra=True)
    _union_of_block(work, name, rows, partial, (f"blockIdx.x * {parts}LL", 1, parts))


def _in_columns(work: Cuda, name: str, rows: Rows) -> None:
    """Add a launch in which neighbouring threads take neighbouring results; in parts where there are few of them."""
    results, lanes, terms = prod(rows.group.shape), BLOCK // WARP, rows.terms
    across = -(-results // WARP)
    parts = max(1, min(MOST_PARTS, terms // COLUMN_PART, -(-ENOUGH_BLOCKS // across)))
    size = _part_size(rows, parts)
    partial, part = list[str](), Part("", str(terms), terms, even=True)
    if parts > 1:
        partial, part = _partial(work, rows, parts), Part("first + ", "end", size, even=terms == size * parts)
    share = rows.total(Threads(lanes, "lane"), part)
    lines = [
        *partial,
        f"const int column = (int)threadIdx.x % {WARP}, lane = (int)threadIdx.x / {WARP};",
        f"const long long own = (long long)(blockIdx.x % {across}) * {WARP} + column;",
        *_block_indices(rows.group, f"own < {results} ? own : {results - 1}"),
        *(_bounds(rows, f"blockIdx.x / {across}", size, share) if parts > 1 else []),
        *share,
        *joined_in_columns(rows.accumulator, lanes),
        f"if (own >= {results}) return;",
    ]
    if parts == 1:
        lines += [*_result(rows.accumulator), *stores(rows.group, work.pointers.of, "result")]
        work.add(name, rows.group, lines, across)
        return
    lines += _kept(rows, f"(long long)(blockIdx.x / {across}) * {results} + own")
    work.add(f"{name}_parts", rows.group, lines, across * parts, extra=True)
    if parts > FEW_PARTS:
        _union_of_block(work, name, rows, partial, ("blockIdx.x", results, parts))
        return
    body = [
        *partial,
        *_neutral(rows.accumulator),
        f"for (int p = 0; p < {parts}; ++p) {{",
        *statements(
            [f"const long long q = p * {results}LL + o;", *union(rows.accumulator, "partial[q]", "places_of[q]")], 1
        ),
        "}",
        *_result(rows.accumulator),
        *stores(rows.group, work.pointers.of, "result"),
    ]
    _each(work, f"{name}_union", rows.group, results, body, extra=True)


def _part_size(rows: Rows, parts: int) -> int:
    """Return the terms of a part: a multiple of what a warp reads at once."""
    align = WARP * rows.packs.width
    return -(-rows.terms // (parts * align)) * align


def _bounds(rows: Rows, part: str, size: int, share: list[str]) -> list[str]:
    """Return the statements that find the bounds of a part, as far as the statements that follow use them."""
    kind = "long long" if rows.terms >= 2**30 else "int"
    end = f"const {kind} end = first + {size} < {rows.terms} ? first + {size} : {rows.terms};"
    used = any("< end" in line for line in share)
    return [f"const {kind} first = ({kind})({part}) * {size};", *([end] if used else [])]


def _partial(work: Cuda, rows: Rows, parts: int) -> list[str]:
    """Return the declarations of the totals of parts, behind the tensors in the workspace."""
    kind, count, base = rows.accumulator.total, prod(rows.group.shape) * parts, work.program.workspace_bytes
    work.workspace_bytes = max(work.workspace_bytes, base + 16 * count)
    return [
        f"{kind}* partial = ({kind}*)(arena + {base}LL);",
        *([f"long long* places_of = (long long*)(arena + {base + 8 * count}LL);"] if rows.accumulator.places else []),
    ]


def _kept(rows: Rows, place: str) -> list[str]:
    return [f"partial[{place}] = total;", *([f"places_of[{place}] = place;"] if rows.accumulator.places else [])]


def _neutral(accumulator: Accumulator) -> list[str]:
    """Return the declarations of a total of no parts."""
    place = ["long long place = 9223372036854775807LL;"] if accumulator.places else []
    return [f"{accumulator.total} total = {accumulator.first};", *place]


def _union_of_block(work: Cuda, name: str, rows: Rows, partial: list[str], parts: tuple[str, int, int]) -> None:
    """Add a launch with a block a result; ``parts`` are the place of the first, the step between them, and how many."""
    first, step, count = parts
    lines = [
        *partial,
        *_block_indices(rows.group, "blockIdx.x"),
        *_neutral(rows.accumulator),
        f"for (int p = (int)threadIdx.x; p < {count}; p += {BLOCK}) {{",
        *statements(
            [
                f"const long long q = {first} + p{f' * {step}LL' if step != 1 else ''};",
                *union(rows.accumulator, "partial[q]", "places_of[q]"),
            ],
            1,
        ),
        "}",
        *joined_in_block(rows.accumulator, BLOCK),
        "if (threadIdx.x != 0) return;",
        *_result(rows.accumulator),
        *stores(rows.group, work.pointers.of, "result"),
    ]
    work.add(f"{name}_union", rows.group, lines, prod(rows.group.shape), extra=True)
