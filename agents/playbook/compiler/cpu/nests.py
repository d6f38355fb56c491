"""Naive, right loop nests for the ``cpu`` target: the statements of any group."""

from __future__ import annotations

from math import prod

from agents.playbook.compiler.accumulators import Accumulator
from agents.playbook.compiler.emission import TYPES, Emitter, statements
from agents.playbook.compiler.groups import Group
from agents.playbook.compiler.loops import argument_of, indices, loops, order_body, order_terms, position
from agents.playbook.compiler.parameters import Pointers, brought, first_values, stores
from agents.playbook.compiler.shapes_of_work import chunk_level, is_contiguous
from agents.playbook.compiler.tensors import Order, Reduce, Scan, Scatter
from agents.playbook.compiler.terms import Term, conjuncts, is_const, make, substituted, variable

LANES = 64
"""Neighbouring outputs that are reduced at the same time where loads are contiguous along them."""
PARTS = 64
"""Parts of a long reduction with few results."""
FEW_RESULTS = 16
SHORTEST_VECTORS = 32
"""Terms of an innermost loop from which on vectors of running extremes pay."""
FEW_PLACES = 64
"""Places of an order that are found by insertion rather than by counting."""
LONG_REDUCTION = 65536
PARALLEL = "#pragma omp parallel for schedule(static)"


def nest(group: Group, pointers: Pointers, *, simd: bool) -> list[str]:
    """Return the statements of a group; ``simd``: with vectors of a map's elements, whatever functions it calls."""
    if group.source is None:
        return _each(group, stores(group, pointers.of, ""), simd=simd)
    if isinstance(group.source, Reduce):
        return _reduction(group, group.source, pointers)
    if isinstance(group.source, Scan):
        return _scan(group, group.source, pointers)
    if isinstance(group.source, Scatter):
        return _scatter(group, group.source, pointers)
    return _order(group, group.source, pointers)


def _each(group: Group, body: list[str], *, simd: bool = False) -> list[str]:
    """Return the loops over a group's index space around a body."""
    rank = len(group.shape)
    inner = group.shape[-1] if rank else 1
    outer = prod(group.shape[:-1])
    last = f"for (idx i{rank - 1} = 0; i{rank - 1} < {inner}; ++i{rank - 1}) {{"
    if inner == 1 or outer >= 8:
        loop = [*(["#pragma omp simd"] if simd else []), last, *statements(body, 1), "}"] if inner > 1 else body
        lines = [*indices(group, "o", list(range(rank - 1))), *loop]
        return [PARALLEL, f"for (long long o = 0; o < {outer}; ++o) {{", *statements(lines, 1), "}"]
    lines = [*indices(group, "o", list(range(rank - 1))), PARALLEL, last, *statements(body, 1), "}"]
    return [f"for (long long o = 0; o < {outer}; ++o) {{", *statements(lines, 1), "}"]


def _reduction(group: Group, reduction: Reduce, pointers: Pointers) -> list[str]:
    accumulator = Accumulator(reduction.kind, reduction.value)
    results = prod(group.shape)
    extents = reduction.extents
    if results < FEW_RESULTS and prod(extents) >= LONG_REDUCTION:
        return _in_parts(group, reduction, accumulator, pointers)
    lanes = bool(group.shape) and group.shape[-1] >= 8 and not accumulator.places
    by_rows = not extents or (extents[-1] >= 16 and is_contiguous(group, group.inner[-1]))
    if lanes and not by_rows:
        return _by_lanes(group, reduction, accumulator, pointers)
    rank = len(group.shape)
    body = [
        *indices(group, "o", list(range(rank))),
        *_one_result(group, reduction, accumulator, pointers),
        *stores(group, pointers.of, "result"),
    ]
    return [PARALLEL, f"for (long long o = 0; o < {results}; ++o) {{", *statements(body, 1), "}"]


def _begin(accumulator: Accumulator) -> list[str]:
    lines = [f"{accumulator.total} total = {accumulator.first};"]
    return [*lines, "long long place = 0;"] if accumulator.places else lines


def _one_result(
    group: Group, reduction: Reduce, accumulator: Accumulator, pointers: Pointers, first: tuple[str, str] = ("0", "")
) -> list[str]:
    """Return the statements that reduce one result to ``result``; ``first`` bounds the outermost loop."""
    lines, value = argument_of(group, pointers)
    names = [f"r{axis}" for axis in range(len(reduction.extents))]
    if accumulator.places:
        at = position(reduction, names)
        body = [
            *lines,
            f"const {accumulator.term} term = {value};",
            f"if ({accumulator.better()}(term, total)) {{ total = term; place = {at}; }}",
        ]
        nest = loops(reduction, names, body, None, first)
        return [*_begin(accumulator), *nest, "const long long result = place;"]
    if accumulator.chunked:
        chunk = (chunk_level(reduction.extents), "float run = 0;", "total += run;")
        nest = loops(reduction, names, [*lines, f"run += {value};"], chunk, first)
    else:
        nest = loops(reduction, names, [*lines, accumulator.step("total", value)], None, first)
        nest = _in_vectors(nest, reduction)
    return [*_begin(accumulator), *nest, f"const {accumulator.term} result = ({accumulator.term})total;"]


EXTREMES = {"max": "largest", "min": "smallest"}
"""Reductions that the source declares: those of OpenMP know no NaN."""


def _in_vectors(nest: list[str], reduction: Reduce) -> list[str]:
    """Return loops over an extreme's terms with vectors of running extremes."""
    if reduction.kind not in EXTREMES or reduction.value != "float32" or not reduction.extents:
        return nest
    last = len(reduction.extents) - 1
    place = next(at for at, line in enumerate(nest) if line.lstrip().startswith(f"for (idx r{last} = "))
    indent = nest[place][: len(nest[place]) - len(nest[place].lstrip())]
    pragma = f"{indent}#pragma omp simd reduction({EXTREMES[reduction.kind]} : total)"
    return [*nest[:place], pragma, *nest[place:]] if reduction.extents[-1] >= SHORTEST_VECTORS else nest


def _in_parts(group: Group, reduction: Reduce, accumulator: Accumulator, pointers: Pointers) -> list[str]:
    """Return a long reduction, its outermost axis dealt out to threads, for each of few results."""
    rank = len(group.shape)
    outermost = reduction.extents[0]
    parts = min(PARTS, outermost)
    low, high = f"(idx)({outermost}LL * part / {parts})", f"(idx)({outermost}LL * (part + 1) / {parts})"
    inside = _one_result(group, reduction, accumulator, pointers, ("low", "high"))
    kept = ["partial[part] = total;", *(["places[part] = place;"] if accumulator.places else [])]
    if accumulator.places:
        same = "(partial[part] == total || (partial[part] != partial[part] && total != total))"
        joined = [
            f"if ({accumulator.better()}(partial[part], total) || ({same} && places[part] < place)) {{",
            "    total = partial[part]; place = places[part];",
            "}",
        ]
        result = "const long long result = place;"
        begin = [f"{accumulator.total} total = partial[0];", "long long place = places[0];"]
    else:
        joined = [accumulator.step("total", "partial[part]")]
        result = f"const {accumulator.term} result = ({accumulator.term})total;"
        begin = [f"{accumulator.total} total = partial[0];"]
    body = [
        *indices(group, "o", list(range(rank))),
        f"{accumulator.total} partial[{parts}];",
        *([f"long long places[{parts}];"] if accumulator.places else []),
        PARALLEL,
        f"for (int part = 0; part < {parts}; ++part) {{",
        *statements([f"const idx low = {low}, high = {high};", *inside[:-1], *kept], 1),
        "}",
        *begin,
        f"for (int part = 1; part < {parts}; ++part) {{",
        *statements(joined, 1),
        "}",
        result,
        *stores(group, pointers.of, "result"),
    ]
    return [f"for (long long o = 0; o < {prod(group.shape)}; ++o) {{", *statements(body, 1), "}"]


def _by_lanes(group: Group, reduction: Reduce, accumulator: Accumulator, pointers: Pointers) -> list[str]:
    """Return a reduction of neighbouring results at the same time."""
    rank = len(group.shape)
    last = rank - 1
    tiles = -(-group.shape[-1] // LANES)
    lines, value = argument_of(group, pointers)
    names = [f"r{axis}" for axis in range(len(reduction.extents))]
    lane = f"for (int lane = 0; lane < count; ++lane) {{ const idx i{last} = start + lane;"
    into = "run[lane]" if accumulator.chunked else "total[lane]"
    steps = statements([*lines, accumulator.step(into, value)], 1)
    body = [*_skip_zeros(group, reduction, pointers), "#pragma omp simd", lane, *steps, "}"]
    each = "for (int lane = 0; lane < count; ++lane)"
    chunk = None
    if accumulator.chunked:
        begin, end = f"{each} run[lane] = 0;", f"{each} total[lane] += run[lane];"
        chunk = (chunk_level(reduction.extents), begin, end)
    nest = [line for line in loops(reduction, names, body, chunk, ("0", "")) if "reduction(+" not in line]
    inside = [
        *indices(group, f"(o / {tiles})", list(range(last))),
        f"const idx start = (idx)(o % {tiles}) * {LANES};",
        f"const int count = {group.shape[-1]} - start < {LANES} ? (int)({group.shape[-1]} - start) : {LANES};",
        f"{accumulator.total} total[{LANES}];",
        *([f"float run[{LANES}];"] if accumulator.chunked else []),
        f"{each} total[lane] = {accumulator.first};",
        *nest,
        f"{each} {{",
        *statements(
            [
                f"const idx i{last} = start + lane;",
                f"const {accumulator.term} result = ({accumulator.term})total[lane];",
                *stores(group, pointers.of, "result"),
            ],
            1,
        ),
        "}",
    ]
    count = prod(group.shape[:-1]) * tiles
    return [PARALLEL, f"for (long long o = 0; o < {count}; ++o) {{", *statements(inside, 1), "}"]


def _skip_zeros(group: Group, reduction: Reduce, pointers: Pointers) -> list[str]:
    """Return statements that pass over a term of a sum which is zero for all neighbours, as most are of a scatter."""
    condition = _condition_of(group.argument)
    if condition is None or reduction.kind != "sum" or not reduction.extents:
        return []
    parts = [part for part in conjuncts(condition) if _is_constant_over(part, group.index[-1])]
    emitter = Emitter({}, pointers.of, "g")
    texts = emitter.emit(*parts)
    return [*emitter.lines, f"if (!({' && '.join(texts)})) continue;"] if texts else []


def _condition_of(term: Term | None) -> Term | None:
    """Return the condition without which a term is zero; None where it has none."""
    if term is None:
        return None
    if term.op == "where" and is_const(term.args[2], 0):
        return term.args[0]
    return term.args[-1] if term.op == "load" and len(term.args) > len(term.data.shape) else None


def _is_constant_over(term: Term, index: Term) -> bool:
    """Return whether a term is the same for all values of an index."""
    return substituted([term], {index: variable("other", 1 << 40)})[0] is term


def _scan(group: Group, scan: Scan, pointers: Pointers) -> list[str]:
    accumulator = Accumulator(scan.kind, scan.register)
    axes = [axis for axis in range(len(group.shape)) if axis != scan.axis]
    lines, value = argument_of(group, pointers)
    name = f"i{scan.axis}"
    step = [
        *lines,
        accumulator.step("total", value),
        f"const {accumulator.term} result = ({accumulator.term})total;",
        *stores(group, pointers.of, "result"),
    ]
    body = [
        *indices(group, "o", axes),
        f"{accumulator.total} total = {accumulator.first};",
        f"for (idx {name} = 0; {name} < {scan.shape[scan.axis]}; ++{name}) {{",
        *statements(step, 1),
        "}",
    ]
    return [PARALLEL, f"for (long long o = 0; o < {prod(scan.shape) // scan.shape[scan.axis]}; ++o) {{",
            *statements(body, 1), "}"]  # fmt: skip


def _scatter(group: Group, scatter: Scatter, pointers: Pointers) -> list[str]:
    fill = f"for (long long o = 0; o < {scatter.size}; ++o) {first_values(scatter, pointers.of)}"
    return [PARALLEL, fill, *_each(group, brought(group, scatter, pointers.of))]


def _order(group: Group, order: Order, pointers: Pointers) -> list[str]:
    if order.shape[-1] <= FEW_PLACES:
        return _first_places(group, order, pointers)
    body = [*indices(group, "o", list(range(len(group.shape)))), *order_body(group, order, pointers)]
    return [PARALLEL, f"for (long long o = 0; o < {prod(group.shape)}; ++o) {{", *statements(body, 1), "}"]


def _first_places(group: Group, order: Order, pointers: Pointers) -> list[str]:
    """Return the first few of an order by insertion, a row at a time."""
    count, last = order.shape[-1], len(group.shape) - 1
    _, elsewhere, _ = order_terms(group, order)
    emitter = Emitter({}, pointers.of, "u")
    (value,) = emitter.emit(elsewhere)
    kind = TYPES[elsewhere.dtype]
    better = "sooner" if order.largest else "below"
    rank = make("index", "index", data="rank", low=0, high=count - 1)
    places = Emitter({}, pointers.of, "v")
    (offset,) = places.emit(order.offset((*group.index[:-1], rank)))
    insert = [
        *emitter.lines,
        f"const {kind} other = {value};",
        f"if (held == {count} && !{better}(other, best[{count - 1}])) continue;",
        f"int at = held < {count} ? held++ : {count - 1};",
        f"for (; at > 0 && {better}(other, best[at - 1]); --at) {{",
        "    best[at] = best[at - 1]; place[at] = place[at - 1];",
        "}",
        "best[at] = other;",
        "place[at] = q;",
    ]
    body = [
        *indices(group, "o", list(range(last))),
        f"{kind} best[{count}];",
        f"idx place[{count}];",
        "int held = 0;",
        f"for (idx q = 0; q < {order.length}; ++q) {{",
        *statements(insert, 1),
        "}",
        f"for (idx rank = 0; rank < {count}; ++rank) {{",
        *statements([*places.lines, f"st({pointers.of(order)}, {offset}, (long long)place[rank]);"], 1),
        "}",
    ]
    return [PARALLEL, f"for (long long o = 0; o < {prod(group.shape[:-1])}; ++o) {{", *statements(body, 1), "}"]
