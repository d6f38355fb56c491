"""Row operators along contiguous rows on the ``cpu`` target: softmax, norms, reductions over the last axes."""

from __future__ import annotations

from agents.playbook.expressions import Expr
from agents.playbook.operators import Rows, kept_value, moments_pair, softmax_pair
from agents.playbook.templates.cpu_accumulators import EXTREMES, PART, SCALAR, VECTOR
from agents.playbook.templates.cpu_math import prelude
from agents.playbook.templates.cpu_stores import BROADCAST_SCALAR, BROADCAST_VECTOR, STREAMING_STORES
from agents.playbook.templates.passes import Layout, Pass, lay_out, prepared
from agents.playbook.templates.source import Options, Source, arguments, fill
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target

PIECE = 16384
"""Elements after which partial sums are settled in float64: at most 1024 additions in one float32 chain of 16 lanes."""
SMALL_PIECE = 1024
"""Elements that the one-pass statistics look at twice: 4 KiB, well within L1."""

EACH = """
// Calls f(lanes, index, chain) for every vector, and every left-over element, of [begin, end).
template <class F>
static inline __attribute__((always_inline)) void each(long long begin, long long end, F&& f) {
    long long i = begin;
    $VECTORS
    $UNROLL
    for (; i < end; ++i) f(Scalar{}, i, 0);
}
"""
_VECTORS = """
for (; i + K_UNROLL * SIMD <= end; i += K_UNROLL * SIMD) {
    #pragma GCC unroll 16
    for (int u = 0; u < K_UNROLL; ++u) f(Vector{}, i + u * SIMD, u % K_CHAINS);
}
for (; i + SIMD <= end; i += SIMD) f(Vector{}, i, 0);
"""


def render(operator: Rows, options: Options) -> Kernel:
    """Return the kernel of a row operator whose rows are contiguous."""
    operator = prepared(operator, options)
    simd, split = "simd" in options, "split_rows" in options
    keep = kept_value(operator) if "fused_passes" in options else None
    layout = lay_out(operator, keep=keep)
    source = Source(f"Row operator: {operator.rows} rows of {operator.length}", options)
    chains = options.number("multiple_accumulators", "count", 1)
    unroll = max(chains, options.number("loop_unrolling", "factor", 1))
    source.constants(rows=operator.rows, length=operator.length)
    if simd:
        source.constants(piece=PIECE, chains=chains, unroll=unroll)
    if split:
        source.constants(parts=options.number("split_rows", "parts", 16), part=part_length(operator, options))
    roots = [expr for _, expr in operator.outputs]
    source.add(prelude(roots, options, always=("exp",) if "online_softmax" in options else ()))
    if "nontemporal_stores" in options:
        source.add(STREAMING_STORES)
    if operator.spread:
        source.add(BROADCAST_VECTOR if simd else BROADCAST_SCALAR)
    source.add(accumulators(layout, options))
    scalar_unroll = [f"#pragma GCC unroll {unroll}"] if unroll > 1 and not simd else []
    names = operator.inputs
    source.add(EACH, VECTORS=_VECTORS.strip().split("\n") if simd else [], UNROLL=scalar_unroll)
    source.add(
        """
        static inline void one_row($PARAMETERS) {
            $BODY
        }
        """,
        PARAMETERS=arguments(names, output_types(operator)) + (", long long row" if operator.spread else ""),
        BODY=_body(operator, layout, options, keep),
    )
    source.add(
        """
        extern "C" void reduce_rows($ARGUMENTS) {
            $PRAGMA
            for (long long row = 0; row < K_ROWS; ++row)
                one_row($POINTERS);
            $FENCE
        }
        """,
        ARGUMENTS=arguments(names, output_types(operator)),
        PRAGMA=[] if split else row_pragma(options),
        POINTERS=", ".join(
            [
                *(_at_row(operator, name) for name in names),
                *_outputs_at_row(operator),
                *(["row"] if operator.spread else []),
            ]
        ),
        FENCE=["drain_stores();"] if "nontemporal_stores" in options else [],
    )
    launch = Launch(kernel="reduce_rows", args=(*names, *(name for name, _ in operator.outputs)))
    return source.kernel(Target.CPU, LaunchPlan(launches=(launch,)))


def part_length(operator: Rows, options: Options) -> int:
    """Return the number of elements of one part of a split row: whole cache lines, so that parts share none."""
    parts = options.number("split_rows", "parts", 16)
    return -(-operator.length // parts // 64) * 64 or 64


def row_pragma(options: Options) -> list[str]:
    """Return the OpenMP line above a loop over rows."""
    if "threads" not in options:
        return []
    chunk = options.number("row_chunking", "rows", 0)
    schedule = options.text("threads", "schedule")
    return [f"#pragma omp parallel for schedule({schedule}{f', {chunk}' if chunk else ''})"]


def output_types(operator: Rows) -> list[tuple[str, str]]:
    """Return the C type and name of each output."""
    return [("long long" if expr.name.startswith("Arg") else "float", name) for name, expr in operator.outputs]


def _at_row(operator: Rows, name: str) -> str:
    if name in operator.elements:
        return f"p_{name} + row * K_LENGTH"
    return f"p_{name} + row" if name in operator.row_inputs else f"p_{name}"


def _outputs_at_row(operator: Rows) -> list[str]:
    step = "row * K_LENGTH" if operator.maps else "row"
    return [f"p_{name} + {step}" for name, _ in operator.outputs]


def accumulators(layout: Layout, options: Options) -> str:
    """Return the accumulators that the passes use."""
    table = VECTOR if "simd" in options else SCALAR
    used = {node.name for item in layout.passes for node in item.reductions}
    if options.text("one_pass_moments", "method") == "sum_of_squares":
        used = (used - {"Sum"}) | {"WideSum"}
    if "online_softmax" in options:
        used |= {"Peak", "Sum"}
    text = [PART]
    for name in sorted(used):
        text.append(fill(table["Extreme"], NAME=name, **EXTREMES[name]) if name in EXTREMES else table[name])
    return "\n".join(item.strip("\n") for item in text)


def _body(operator: Rows, layout: Layout, options: Options, keep: Expr | None) -> list[str]:
    lines = [f"const float r_{name} = *p_{name};" for name in operator.row_inputs]
    lines += [f"const float s_{name} = *p_{name};" for name in operator.scalars]
    statistics = [item for item in layout.passes if item.reductions]
    skipped = [f"const auto {name} = {text};" for item in statistics[1:] for name, text in item.before]
    if "online_softmax" in options and softmax_pair(operator):
        lines += [*_online(operator, statistics[0], options), *skipped]
    elif "one_pass_moments" in options and moments_pair(operator):
        lines += [*_moments(operator, statistics[0], options), *skipped]
    else:
        count = 0
        for item in statistics:
            last = item is statistics[-1]
            lines += _statistics(operator, item, count, options, store=bool(keep) and last)
            count += len(item.reductions)
    if operator.maps:
        return lines + _map(operator, layout.passes[-1], options, kept=keep is not None)
    lines += [f"const auto {name} = {text};" for name, text in layout.after]
    return lines + [f"*p_{name} = {text};" for (name, _), text in zip(operator.outputs, layout.results, strict=True)]


def _statistics(operator: Rows, item: Pass, first: int, options: Options, *, store: bool) -> list[str]:
    """Return one pass that reduces: accumulators declared, the loop, and the values ``m0``... that it finds."""
    results = [(f"m{first + k}", node.name) for k, node in enumerate(item.reductions)]
    lines = [f"const auto {name} = {text};" for name, text in item.before]
    inner = [*loads(operator, item, options), *item.lines]
    values = list(item.values)
    if store:
        inner.append(f"const auto kept = {values[0]};")
        inner.append(f"store(p_{operator.outputs[0][0]} + i, kept);  // fused_passes")
        values[0] = "kept"
    inner += [f"{name}_sum.add({value}, i, chain);" for (name, _), value in zip(results, values, strict=True)]
    lines += [f"{kind} {name}_sum;" for name, kind in results]
    lines += over_row(
        inner, [f"{name}_sum" for name, _ in results], [kind for _, kind in results], operator.length, options
    )
    return lines + [f"const auto {name} = {name}_sum.value();" for name, _ in results]


def loads(operator: Rows, item: Pass, options: Options) -> list[str]:
    """Return statements that read what a pass needs for the element, or vector, at ``i``.

    Prefetches with the first pass.
    """
    lines = [f"const auto v_{name} = {load_text(operator, name)};" for name in item.inputs]
    distance = options.number("prefetch", "distance", 0)
    if distance and not item.before:
        lines += [
            f"__builtin_prefetch(p_{name} + i + {distance});" for name in item.inputs if name in operator.elements
        ]
    return lines


def load_text(operator: Rows, name: str) -> str:
    """Return C++ that reads an input for the element, or vector, at ``i`` of the row."""
    for item in operator.spread:
        if item.name == name:
            return f"broadcast<{item.div}, {item.mod}>(lanes, p_{name}, row * K_LENGTH + i)"
    return f"load(lanes, p_{name} + i)"


def over_row(inner: list[str], sums: list[str], kinds: list[str], length: int, options: Options) -> list[str]:
    """Return the loop over a row's pieces, split over threads where the strategy asks for it."""
    first, last = ("first", "last") if "split_rows" in options else ("0", "K_LENGTH")
    call = ["each($FIRST, $LAST, [&](auto lanes, long long i, int chain) {", *(f"    {line}" for line in inner), "});"]
    if sums and length > PIECE and "simd" in options:
        head = "for (long long begin = $FIRST; begin < $LAST; begin += K_PIECE) {"
        end = "    const long long end = begin + K_PIECE < $LAST ? begin + K_PIECE : $LAST;"
        settle = [f"    {name}.settle();" for name in sums]
        call = [head, end, *(f"    {line}" for line in call), *settle, "}"]
        call = [line.replace("each($FIRST, $LAST", "each(begin, end") for line in call]
    loop = "\n".join(call).replace("$FIRST", first).replace("$LAST", last)
    if "split_rows" not in options:
        return loop.split("\n")
    pragma = ["#pragma omp parallel for schedule(static)"] if "threads" in options else []
    text = fill(
        """
        $DECLARE
        $PRAGMA
        for (int part = 0; part < K_PARTS; ++part) {  // split_rows
            const long long first = part * K_PART, last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;
            $MINE
            $LOOP
            $KEEP
        }
        $MERGE
        """,
        DECLARE=[f"Part {name}_parts[K_PARTS];" for name in sums],
        PRAGMA=pragma,
        MINE=[f"{kind} {name};" for name, kind in zip(sums, kinds, strict=True)],
        LOOP=loop.split("\n"),
        KEEP=[f"{name}_parts[part] = {name}.part();" for name in sums],
        MERGE=[f"for (int part = 0; part < K_PARTS; ++part) {name}.merge({name}_parts[part]);" for name in sums],
    )
    return text.split("\n")


def _map(operator: Rows, item: Pass, options: Options, *, kept: bool) -> list[str]:
    output = operator.outputs[0][0]
    lines = [f"const auto {name} = {text};" for name, text in item.before]
    replaced = {operator.elements[0]: f"load(lanes, p_{output} + i)"} if kept else {}
    read = [f"const auto v_{name} = {replaced.get(name) or load_text(operator, name)};" for name in item.inputs]
    write = "stream" if "nontemporal_stores" in options else "store"
    inner = [*read, *item.lines, f"{write}(p_{output} + i, {item.values[0]});"]
    return lines + over_row(inner, [], [], operator.length, options)


_SMALL_PIECES = """
for (long long begin = 0; begin < K_LENGTH; begin += $SMALL) {
    const long long end = begin + $SMALL < K_LENGTH ? begin + $SMALL : K_LENGTH;
    $INNER
}
"""

_ONLINE = """
Peak piece_top;
each(begin, end, [&](auto lanes, long long i, int chain) {
    $LOADS
    piece_top.add($VALUE, i, chain);
});
const float higher = piece_top.value() > m0 ? piece_top.value() : m0;
m1 *= fn_exp(m0 - higher);
m0 = higher;
Sum piece_sum;
each(begin, end, [&](auto lanes, long long i, int chain) {
    $LOADS
    piece_sum.add(fn_exp($VALUE - higher), i, chain);
});
m1 += piece_sum.value();
"""


def _online(operator: Rows, item: Pass, options: Options) -> list[str]:
    """Return maximum and sum of exponentials, piece by piece; each piece is read from memory once and from L1 once."""
    inner = fill(_ONLINE, LOADS=[*loads(operator, item, options), *item.lines], VALUE=item.values[0])
    loop = fill(_SMALL_PIECES, SMALL=SMALL_PIECE, INNER=inner.split("\n"))
    return ["// online_softmax", "float m0 = -3.402823466e38f, m1 = 0;", *loop.split("\n")]


_WELFORD = """
Sum piece_total;
each(begin, end, [&](auto lanes, long long i, int chain) {
    $LOADS
    piece_total.add($VALUE, i, chain);
});
const double count = end - begin, piece_mean = (double)piece_total.value() / count;
const float shift = (float)piece_mean;
Sum piece_squares;
each(begin, end, [&](auto lanes, long long i, int chain) {
    $LOADS
    const auto deviation = $VALUE - shift;
    piece_squares.add(deviation * deviation, i, chain);
});
const double gap = piece_mean - mean, all = seen + count;
mean += gap * count / all;
squares += (double)piece_squares.value() + gap * gap * seen * count / all;
seen = all;
"""


def _moments(operator: Rows, item: Pass, options: Options) -> list[str]:
    lines = [*loads(operator, item, options), *item.lines]
    if options.text("one_pass_moments", "method") == "welford":
        inner = fill(_WELFORD, LOADS=lines, VALUE=item.values[0])
        loop = fill(_SMALL_PIECES, SMALL=SMALL_PIECE, INNER=inner.split("\n"))
        head = "// one_pass_moments: pieces merged as in Chan, Golub and LeVeque (1979)"
        start = "double seen = 0, mean = 0, squares = 0;"
        finish = "const float m0 = (float)(mean * K_LENGTH), m1 = (float)squares;"
        return [head, start, *loop.split("\n"), finish]
    body = [*lines, f"const auto value = {item.values[0]};"]
    body += ["total_sum.add(value, i, chain);", "squares_sum.add_square(value, i, chain);"]
    loop_lines = over_row(body, ["total_sum", "squares_sum"], ["WideSum", "WideSum"], operator.length, options)
    finish_lines = [
        "const double total = total_sum.value(), rest = squares_sum.value() - total * total / K_LENGTH;",
        "const float m0 = (float)total, m1 = rest < 0 ? 0.0f : (float)rest;",
    ]
    return ["// one_pass_moments: sums in float64", "WideSum total_sum, squares_sum;", *loop_lines, *finish_lines]
