"""Row operators across columns on the ``cpu`` target: the reduced axis is not the last, so a vector spans many rows."""

from __future__ import annotations

from agents.playbook.expressions import Expr
from agents.playbook.operators import Rows, kept_value, moments_pair
from agents.playbook.templates.cpu_accumulators import EXTREMES, INDEX_SCALAR, INDEX_VECTOR, LANES
from agents.playbook.templates.cpu_math import prelude
from agents.playbook.templates.cpu_rows import output_types, row_pragma
from agents.playbook.templates.cpu_stores import STREAMING_STORES
from agents.playbook.templates.passes import Layout, Pass, lay_out, prepared
from agents.playbook.templates.source import Options, Source, arguments, fill
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target

SETTLE = 32
"""Steps along the reduced axis after which partial sums are put away: keeps chains of float32 additions short."""

_MOMENTS = """
template <class T> struct LaneMoments {  // one_pass_moments: Welford's recurrence; the count is the same in every lane
    T mean = {}, squares = {};
    void add(T v, long long l) {
        const T gap = v - mean;
        mean += gap * (1.0f / (float)(l + 1));
        squares += gap * (v - mean);
    }
    void settle() {}
};
"""


def render(operator: Rows, options: Options) -> Kernel:
    """Return the kernel of a row operator whose rows are not contiguous."""
    operator = prepared(operator, options)
    simd = "simd" in options
    width = options.number("simd", "width", 1)
    tile = max(options.number("column_tiles", "columns", 4 * width if simd else 1), width)
    keep = kept_value(operator) if "fused_passes" in options else None
    layout = lay_out(operator, keep=keep, suffix="[g]")
    source = Source(f"Row operator: {operator.rows} rows of {operator.length}, {operator.inner} apart", options)
    source.constants(outer=operator.outer, length=operator.length, inner=operator.inner)
    source.constants(tile=tile, tiles=-(-operator.inner // tile))
    source.add(prelude([expr for _, expr in operator.outputs], options))
    if "nontemporal_stores" in options:
        source.add(STREAMING_STORES)
    source.add(INDEX_VECTOR if simd else INDEX_SCALAR)
    moments = "one_pass_moments" in options and moments_pair(operator) is not None
    kinds = {node.name for item in layout.passes for node in item.reductions}
    for name in sorted(kinds):
        text = fill(LANES["Extreme"], NAME=name, **EXTREMES[name]) if name in EXTREMES else LANES[name]
        source.add(text)
    if moments:
        source.add(_MOMENTS)
    names = operator.inputs
    source.add(
        """
        // GROUP vectors of neighbouring columns, starting at the given pointers.
        template <class Lanes, int GROUP>
        static inline void columns(Lanes lanes, $PARAMETERS) {
            typedef decltype(splat(lanes, 0.0f)) T;
            constexpr int width = Lanes::width;
            $BODY
        }
        """,
        PARAMETERS=arguments(names, output_types(operator)),
        BODY=_body(operator, layout, options, keep=keep, moments=moments),
    )
    pointers = ", ".join([*(_at_column(operator, name) for name in names), *_outputs_at_column(operator)])
    source.add(
        """
        extern "C" void reduce_columns($ARGUMENTS) {
            $PRAGMA
            for (long long item = 0; item < K_OUTER * K_TILES; ++item) {
                const long long outer = item / K_TILES;
                long long c = item % K_TILES * K_TILE;
                const long long stop = c + K_TILE < K_INNER ? c + K_TILE : K_INNER;
                $VECTORS
                for (; c < stop; ++c) columns<Scalar, 1>(Scalar{}, $POINTERS);
                $FENCE
            }
        }
        """,
        ARGUMENTS=arguments(names, output_types(operator)),
        PRAGMA=row_pragma(options),
        VECTORS=_vector_loops(pointers, tile // width) if simd else [],
        POINTERS=pointers,
        FENCE=["drain_stores();"] if "nontemporal_stores" in options else [],
    )
    launch = Launch(kernel="reduce_columns", args=(*names, *(name for name, _ in operator.outputs)))
    return source.kernel(Target.CPU, LaunchPlan(launches=(launch,)))


def _vector_loops(pointers: str, group: int) -> list[str]:
    loops = [f"for (; c + {group} * SIMD <= stop; c += {group} * SIMD)"] if group > 1 else []
    loops += [f"    columns<Vector, {group}>(Vector{{}}, {pointers});"] if group > 1 else []
    return [*loops, f"for (; c + SIMD <= stop; c += SIMD) columns<Vector, 1>(Vector{{}}, {pointers});"]


def _at_column(operator: Rows, name: str) -> str:
    if name in operator.elements:
        return f"p_{name} + outer * K_LENGTH * K_INNER + c"
    return f"p_{name} + outer * K_INNER + c" if name in operator.row_inputs else f"p_{name}"


def _outputs_at_column(operator: Rows) -> list[str]:
    step = "outer * K_LENGTH * K_INNER + c" if operator.maps else "outer * K_INNER + c"
    return [f"p_{name} + {step}" for name, _ in operator.outputs]


def _body(operator: Rows, layout: Layout, options: Options, *, keep: Expr | None, moments: bool) -> list[str]:
    lines = [f"const float s_{name} = *p_{name};" for name in operator.scalars]
    for name in operator.row_inputs:
        lines += [f"T r_{name}[GROUP];", *_for_groups([f"r_{name}[g] = load(lanes, p_{name} + g * width);"])]
    statistics = [item for item in layout.passes if item.reductions]
    if moments:
        adds = [f"both[g].add({statistics[0].values[0]}, l);"]
        lines += ["LaneMoments<T> both[GROUP];", *_over_length(operator, statistics[0], options, adds)]
        assign = ["m0[g] = both[g].mean * (float)K_LENGTH;", "m1[g] = both[g].squares;"]
        lines += ["T m0[GROUP], m1[GROUP];", *_for_groups(assign)]
        lines += [line for item in statistics[1:] for line in _row_values(item.before)]
    else:
        count = 0
        for item in statistics:
            store = keep is not None and item is statistics[-1]
            lines += _statistics(operator, item, count, options, store=store)
            count += len(item.reductions)
    if operator.maps:
        return lines + _map(operator, layout.passes[-1], options, kept=keep is not None)
    lines += _row_values(layout.after)
    outputs = zip(operator.outputs, layout.results, strict=True)
    return lines + _for_groups([f"store(p_{name} + g * width, {text});" for (name, _), text in outputs])


def _row_values(values: tuple[tuple[str, str], ...]) -> list[str]:
    lines: list[str] = []
    for name, text in values:
        lines += [f"T {name}[GROUP];", *_for_groups([f"{name}[g] = splat(lanes, {text});"])]
    return lines


def _for_groups(lines: list[str]) -> list[str]:
    return ["for (int g = 0; g < GROUP; ++g) {", *(f"    {line}" for line in lines), "}"]


def _statistics(operator: Rows, item: Pass, first: int, options: Options, *, store: bool) -> list[str]:
    results = [(f"m{first + k}", node.name) for k, node in enumerate(item.reductions)]
    values = list(item.values)
    inner = []
    if store:
        inner.append(f"const T kept = {values[0]};")
        inner.append(f"store(p_{operator.outputs[0][0]} + l * K_INNER + g * width, kept);  // fused_passes")
        values[0] = "kept"
    inner += [f"{name}_sum[g].add({value}, l);" for (name, _), value in zip(results, values, strict=True)]
    lines = _row_values(item.before) + [f"Lane{kind}<T> {name}_sum[GROUP];" for name, kind in results]
    settle = [f"{name}_sum[g].settle();" for name, kind in results if kind == "Sum"]
    lines += _over_length(operator, item, options, inner, settle=settle)
    for name, kind in results:
        declared = "typename Index<T>::type" if kind.startswith("Arg") else "T"
        lines += [f"{declared} {name}[GROUP];", *_for_groups([f"{name}[g] = {name}_sum[g].value();"])]
    return lines


def _over_length(
    operator: Rows,
    item: Pass,
    options: Options,
    inner: list[str],
    *,
    settle: list[str] | None = None,
    source: dict[str, str] | None = None,
) -> list[str]:
    """Return the loop along the reduced axis, over the columns of the group within."""
    unroll = options.number("loop_unrolling", "factor", 1)
    distance = options.number("prefetch", "distance", 0)
    reads = []
    for name in item.inputs:
        if name in operator.columns:
            reads.append(f"const T v_{name} = splat(lanes, p_{name}[l]);")
        else:
            pointer = (source or {}).get(name, name)
            reads.append(f"const T v_{name} = load(lanes, p_{pointer} + l * K_INNER + g * width);")
            if distance:
                steps = max(1, distance // operator.inner)
                reads.append(f"__builtin_prefetch(p_{pointer} + (l + {steps}) * K_INNER + g * width);")
    pragma = [f"#pragma GCC unroll {unroll}"] if unroll > 1 else []
    body = _for_groups([*reads, *item.lines, *inner])
    if settle and operator.length > SETTLE:
        body += [f"if (l % {SETTLE} == {SETTLE - 1}) {{", *(f"    {line}" for line in _for_groups(settle)), "}"]
    return [*pragma, "for (long long l = 0; l < K_LENGTH; ++l) {", *(f"    {line}" for line in body), "}"]


def _map(operator: Rows, item: Pass, options: Options, *, kept: bool) -> list[str]:
    output = operator.outputs[0][0]
    write = "stream" if "nontemporal_stores" in options else "store"
    inner = [f"{write}(p_{output} + l * K_INNER + g * width, {item.values[0]});"]
    source = {operator.elements[0]: output} if kept else {}
    return [*_row_values(item.before), *_over_length(operator, item, options, inner, source=source)]
