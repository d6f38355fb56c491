"""Row operators on the ``cuda`` target with rows split over several blocks: a kernel a pass, partial results between.

Each kernel first combines the partial results of the passes before it, so no block ever waits for another.
"""

from __future__ import annotations

from agents.playbook.operators import Rows
from agents.playbook.templates.cuda_accumulators import BLOCK_SHUFFLE, BLOCK_TREE, SIZES, WORDS, accumulator
from agents.playbook.templates.cuda_math import bounds, functions
from agents.playbook.templates.cuda_packs import lanes, types_of
from agents.playbook.templates.cuda_row_body import Body, Sharing, Statistic, body, indented
from agents.playbook.templates.cuda_rows import BLOCKS, output_types, row_packs, simplified
from agents.playbook.templates.passes import Pass
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import Target

COMBINE = """
// split_rows: every thread of a block gets what all parts of a row have found together
template <class A> __device__ __forceinline__ A combine(const A* parts) {
    A mine;
    for (int part = threadIdx.x; part < K_PARTS; part += K_BLOCK) mine.merge(parts[part]);
    return reduce_block(mine);
}
"""


def render(operator: Rows, options: Options) -> Kernel:
    """Return the kernels of a row operator whose rows are contiguous and split over blocks."""
    operator = simplified(operator, options)
    chain = operator.length // _parts(options) // BLOCKS[0]
    unroll = options.number("loop_unrolling", "factor", 1)
    sharing = Sharing(True, 1, "memory", "reduce_block", "K_BLOCK", unroll, chain, first="first", last="last")
    made = body(operator, options, sharing)
    width = lanes(operator, options)
    parts = options.number("split_rows", "parts", 16)
    share = -(-operator.length // parts // (32 * width)) * 32 * width or 32 * width
    source = Source(f"Row operator: {operator.rows} rows of {operator.length}, in {parts} parts each", options)
    source.constants(rows=operator.rows, length=operator.length)
    source.add("constexpr int K_PARTS = $PARTS, K_PART = $SHARE;", PARTS=parts, SHARE=share)
    source.add(row_packs(operator, options))
    source.add(functions([expr for _, expr in operator.outputs], options, always=("exp",) if made.single else ()))
    source.add("\n".join(accumulator(kind).strip("\n") for kind in made.accumulators()))
    source.add(WORDS + (BLOCK_SHUFFLE if "warp_shuffle_reduction" in options else BLOCK_TREE))
    source.add(COMBINE)
    passes = made.statistics()
    launches = [_pass_kernel(source, made, options, passes[: number + 1]) for number in range(len(passes))]
    launches.append(_last_kernel(source, made, options, passes))
    workspace = tuple(
        Workspace(name=f"parts_{entry.name}", bytes=str(operator.rows * parts * SIZES[entry.kind]))
        for entry in _statistics(passes)
    )
    block = Tunable(value=512 if operator.rows * parts <= 1024 else 256, choices=BLOCKS)
    plan = LaunchPlan(launches=tuple(launches), tunables={"K_BLOCK": block}, workspace=workspace)
    return source.kernel(Target.CUDA, plan)


Passes = list[tuple[Pass, list[Statistic]]]


def _statistics(passes: Passes) -> list[Statistic]:
    return [entry for _, statistics in passes for entry in statistics]


def _pass_kernel(source: Source, made: Body, options: Options, passes: Passes) -> Launch:
    """Return a kernel that makes the partial results of the last of these passes; a block for each part of each row."""
    operator = made.operator
    item, statistics = passes[-1]
    known = _statistics(passes[:-1])
    lines = [*_place(), *_before(made), *_known(made, passes[:-1]), *made.pass_lines(item, statistics)]
    for entry in statistics:
        lines.append(f"const {entry.kind} all_{entry.name} = reduce_block({entry.name});")
        lines.append(f"if (lane == 0) parts_{entry.name}[row * K_PARTS + part] = all_{entry.name};")
    written = [(entry.kind, f"parts_{entry.name}") for entry in statistics]
    name = f"pass_{len(passes) - 1}"
    _add_kernel(source, made=made, options=options, name=name, known=known, written=written, lines=lines)
    names = (*operator.inputs, *(f"parts_{entry.name}" for entry in [*known, *statistics]))
    return Launch(kernel=name, args=names, grid=(f"{operator.rows} * {_parts(options)}",), block=("K_BLOCK",))


def _last_kernel(source: Source, made: Body, options: Options, passes: Passes) -> Launch:
    """Return the kernel that writes the result: element by element in parts again, or one block a row."""
    operator, known = made.operator, _statistics(passes)
    lines = [*(_place() if operator.maps else _whole_row()), *_before(made), *_known(made, passes), *made.skipped()]
    if operator.maps:
        lines += made.map_lines()
    else:
        lines += made.row_values(made.layout.after)
        results = zip(operator.outputs, made.layout.results, strict=True)
        lines += ["if (lane == 0) {", *indented([f"p_{name}[row] = {text};" for (name, _), text in results]), "}"]
    outputs = [(kind, f"p_{name}") for kind, name in output_types(operator)]
    _add_kernel(source, made=made, options=options, name="finish", known=known, written=outputs, lines=lines)
    names = (*operator.inputs, *(f"parts_{entry.name}" for entry in known))
    grid = f"{operator.rows} * {_parts(options)}" if operator.maps else str(operator.rows)
    outs = tuple(name for name, _ in operator.outputs)
    return Launch(kernel="finish", args=(*names, *outs), grid=(grid,), block=("K_BLOCK",))


def _parts(options: Options) -> int:
    return options.number("split_rows", "parts", 16)


def _add_kernel(
    source: Source,
    *,
    made: Body,
    options: Options,
    name: str,
    known: list[Statistic],
    written: list[tuple[str, str]],
    lines: list[str],
) -> None:
    inputs = arguments(made.operator.inputs, [], types_of(made.operator))
    partial = [f"const {entry.kind}* __restrict__ parts_{entry.name}" for entry in known]
    outputs = [f"{kind}* __restrict__ {text}" for kind, text in written]
    source.add(
        """
        extern "C" __global__ void $BOUNDS $NAME($ARGUMENTS) {
            $BODY
        }
        """,
        BOUNDS=bounds(options, "K_BLOCK"),
        NAME=name,
        ARGUMENTS=", ".join([inputs, *partial, *outputs]),
        BODY=lines,
    )


def _place() -> list[str]:
    return [
        "const int lane = threadIdx.x, part = blockIdx.x % K_PARTS;",
        "const long long row = blockIdx.x / K_PARTS, at = row * K_LENGTH;",
        "const int first = part * K_PART, last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;",
    ]


def _whole_row() -> list[str]:
    return ["const int lane = threadIdx.x;", "const long long row = blockIdx.x;"]


def _before(made: Body) -> list[str]:
    operator = made.operator
    scalars = [f"const float s_{name} = *p_{name};" for name in operator.scalars]
    return scalars + [f"const float r_{name} = p_{name}[row];" for name in operator.row_inputs]


def _known(made: Body, before: Passes) -> list[str]:
    """Return the results of earlier passes, from their parts, and the row's values made of them.

    Each kernel starts afresh.
    """
    lines: list[str] = []
    for item, statistics in before:
        lines += made.row_values(item.before)
        for entry in statistics:
            lines += made.named(entry, f"combine(parts_{entry.name} + row * K_PARTS)")
    return lines
