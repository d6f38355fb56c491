"""Row operators on the ``cuda`` target, one kernel: a block, a warp, or slices of a block share each row.

Rows that are split over several blocks are ``cuda_split``'s.
"""

from __future__ import annotations

from dataclasses import replace

from agents.playbook.operators import Rows
from agents.playbook.templates.cuda_accumulators import (
    BLOCK_SHUFFLE,
    BLOCK_TREE,
    CLUSTER,
    SLICES,
    WARP,
    WORDS,
    accumulator,
)
from agents.playbook.templates.cuda_math import bounds, fast_division, functions
from agents.playbook.templates.cuda_packs import lanes, packs, type_of, types_of
from agents.playbook.templates.cuda_row_body import Body, Sharing, body, indented
from agents.playbook.templates.passes import prepared
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.problem import Target

BLOCKS = (64, 128, 256, 512, 1024)
MANY_BLOCKS = 16
"""Blocks a multiprocessor from which on their size matters more than their number."""
MAX_ITEMS = 32
"""Registers that kept values may take: with more, 256 threads leave no room for two blocks on a multiprocessor."""


def render(operator: Rows, options: Options, device: Device) -> Kernel:
    """Return the kernel of a row operator under the given techniques."""
    operator = simplified(operator, options)
    width = lanes(operator, options)
    warps = options.number("warp_per_row", "warps", 0)
    made = body(operator, options, _sharing(operator, options, width, warps))
    source = Source(f"Row operator: {operator.rows} rows of {operator.length}", options)
    source.constants(rows=operator.rows, length=operator.length)
    if not operator.contiguous:
        slices = options.number("column_slices", "slices", 1)
        source.add(
            "constexpr int K_INNER = $INNER, K_SLICES = $SLICES, K_COLUMNS = K_BLOCK / K_SLICES;",
            INNER=operator.inner,
            SLICES=slices,
        )
    source.add(row_packs(operator, options))
    source.add(functions([expr for _, expr in operator.outputs], options, always=("exp",) if made.single else ()))
    cluster = options.number("cluster_rows", "blocks", 1)
    if cluster > 1:
        source.add("constexpr int K_CLUSTER = $BLOCKS, K_PART = $PART;", BLOCKS=cluster, PART=share(operator, options))
    if made.sharing.storage == "shared" and len(operator.elements) > 1:
        source.add("constexpr int K_STAGED = $STAGED;", STAGED=share(operator, options))
    if made.sharing.storage == "registers":
        source.add("constexpr int K_ITEMS = $ITEMS;", ITEMS=_items_text(operator, made.sharing))
    source.add("\n".join(accumulator(kind).strip("\n") for kind in made.accumulators()))
    source.add(combining(operator, options))
    if made.sharing.storage == "shared":
        source.add(
            """
            extern __shared__ __align__(16) float staged[];  // shared_rows
            __device__ __forceinline__ Pack& staged_pack(int i) { return *reinterpret_cast<Pack*>(staged + i); }
            """
        )
    source.add(
        """
        extern "C" __global__ void $BOUNDS reduce_rows($ARGUMENTS) {
            $BODY
        }
        """,
        BOUNDS=bounds(options, str(32 * warps) if warps else "K_BLOCK"),
        ARGUMENTS=arguments(operator.inputs, output_types(operator), types_of(operator)),
        BODY=_kernel_body(made, options, warps),
    )
    return source.kernel(Target.CUDA, _plan(operator, options, device, made, warps))


def simplified(operator: Rows, options: Options) -> Rows:
    """Return the operator as the strategy wants it written: divisions hoisted, or on the approximate unit."""
    operator = prepared(operator, options)
    if not operator.maps:
        return operator
    name, root = operator.outputs[0]
    return replace(operator, outputs=((name, fast_division(root, options)),))


def output_types(operator: Rows) -> list[tuple[str, str]]:
    """Return the C type and name of each output."""
    return [
        ("long long" if expr.name.startswith("Arg") else type_of(operator, name), name)
        for name, expr in operator.outputs
    ]


def row_packs(operator: Rows, options: Options) -> str:
    """Return the type ``Pack`` and the access to the operator's tensors; weights of strided rows are read singly."""
    return packs(operator, options, (*operator.streamed, *(operator.columns if operator.contiguous else ())))


def combining(operator: Rows, options: Options) -> str:
    """Return the functions that combine accumulators over the threads of a row."""
    if not operator.contiguous:
        return WORDS + SLICES
    if "warp_per_row" in options:
        return WORDS + WARP
    block = BLOCK_SHUFFLE if "warp_shuffle_reduction" in options else BLOCK_TREE
    return WORDS + block + (CLUSTER if "cluster_rows" in options else "")


def share(operator: Rows, options: Options) -> int:
    """Return the number of elements of a row that one block handles.

    All, or whole packs for each block of a cluster.
    """
    blocks = options.number("cluster_rows", "blocks", 1)
    return operator.length if blocks == 1 else -(-operator.length // (blocks * 128)) * 128


def _sharing(operator: Rows, options: Options, width: int, warps: int) -> Sharing:
    storage = "memory"
    if "register_rows" in options:
        storage = "registers"
    elif "shared_rows" in options:
        storage = "shared"
    unroll = options.number("loop_unrolling", "factor", 1)
    if not operator.contiguous:
        chain = operator.length // options.number("column_slices", "slices", 1)
        return Sharing(False, width, storage, "reduce_slices", "K_SLICES", unroll, chain, last="last")
    if warps:
        group = options.number("rows_per_warp", "rows", 1)
        return Sharing(True, group, storage, "reduce_warp", "32", unroll, operator.length // 32)
    chain = share(operator, options) // BLOCKS[0]
    if "cluster_rows" in options:
        reduce = "reduce_cluster<$CALL>"
        return Sharing(True, 1, storage, reduce, "K_BLOCK", unroll, chain, first="first", last="last")
    return Sharing(True, 1, storage, "reduce_block", "K_BLOCK", unroll, chain)


def items(operator: Rows, options: Options, block: int) -> int:
    """Return the number of registers that the kept values of a thread take with blocks of this size."""
    width = lanes(operator, options)
    threads = block
    if not operator.contiguous:
        threads, packs_of_row = options.number("column_slices", "slices", 1), operator.length
    else:
        threads = 32 if "warp_per_row" in options else block
        packs_of_row = -(-share(operator, options) // width)
    group = options.number("rows_per_warp", "rows", 1)
    return -(-packs_of_row // threads) * width * group * len(operator.elements)


def _items_text(operator: Rows, sharing: Sharing) -> str:
    if not operator.contiguous:
        return "(K_LENGTH + K_SLICES - 1) / K_SLICES"
    length = "K_LENGTH" if sharing.first == "0" else "K_PART"
    return f"({length} + {sharing.step} * K_VEC - 1) / ({sharing.step} * K_VEC)"


def _kernel_body(made: Body, options: Options, warps: int) -> list[str]:
    operator = made.operator
    work = [f"const float s_{name} = *p_{name};" for name in operator.scalars]
    inner = _where(made)
    inner += [line for name in operator.row_inputs for line in _row_input(made, name)]
    inner += made.loading()
    for item, statistics in made.statistics():
        inner += [*made.pass_lines(item, statistics), *made.combine(statistics)]
    inner += made.skipped()
    if operator.maps:
        inner += made.map_lines()
    else:
        inner += _write_results(made)
    lane = "threadIdx.x & 31" if warps else "threadIdx.x"
    head = [f"const int lane = {lane};"] if operator.contiguous else ["const int slice = threadIdx.x / K_COLUMNS;"]
    return [*head, *work, *_rows_loop(made, options, warps, inner)]


def _where(made: Body) -> list[str]:
    if made.operator.contiguous and made.sharing.first == "first":
        return [
            'asm volatile("barrier.cluster.arrive.relaxed;");  // this block has begun, so its memory is there',
            "const long long at = row * K_LENGTH;",
            "const int first = blockIdx.x % K_CLUSTER * K_PART;",
            "const int last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;",
        ]
    if made.operator.contiguous:
        return ["const long long at = row * K_LENGTH;"]
    rows = made.operator.row_inputs or not made.operator.maps
    return [
        "const long long outer = tile / K_TILES;",
        "const int column = (tile % K_TILES) * (K_COLUMNS * K_VEC) + threadIdx.x % K_COLUMNS * K_VEC;",
        "const int last = column < K_INNER ? K_LENGTH : 0;  // threads beyond the edge only take part in barriers",
        "const long long at = outer * K_LENGTH * K_INNER + column;",
        *(["const long long row = outer * K_INNER + column;"] if rows else []),
    ]


def _row_input(made: Body, name: str) -> list[str]:
    group = made.sharing.group
    guard = "" if made.operator.contiguous else "column < K_INNER ? "
    rest = "" if made.operator.contiguous else " : 0.0f"
    if group == 1:
        return [f"const float r_{name} = {guard}p_{name}[row]{rest};"]
    loop = f"for (int n = 0; n < {group}; ++n) r_{name}[n] = {guard}p_{name}[row + n]{rest};"
    return [f"float r_{name}[{group}];", loop]


def _write_results(made: Body) -> list[str]:
    lines = made.row_values(made.layout.after)
    writes = []
    for (name, _), text in zip(made.operator.outputs, made.layout.results, strict=True):
        index = "row + n" if made.sharing.group > 1 else "row"
        writes.append(f"p_{name}[{index}] = {text};")
    condition = "lane == 0" if made.operator.contiguous else "slice == 0 && column < K_INNER"
    if made.sharing.group > 1:
        writes = [f"for (int n = 0; n < {made.sharing.group}; ++n) {{", *indented(writes), "}"]
    return [*lines, f"if ({condition}) {{", *indented(writes), "}"]


def _rows_loop(made: Body, options: Options, warps: int, inner: list[str]) -> list[str]:
    """Return which rows a thread works on, around the work on one (group of) rows."""
    if not made.operator.contiguous:
        tiles = "constexpr int K_TILES = (K_INNER + K_COLUMNS * K_VEC - 1) / (K_COLUMNS * K_VEC);"
        total = f"{made.operator.outer}LL * K_TILES"
        if "grid_stride" in options:
            loop = f"for (long long tile = blockIdx.x; tile < {total}; tile += gridDim.x) {{  // grid_stride"
            return [tiles, loop, *indented(inner), "}"]
        return [tiles, "const long long tile = blockIdx.x;", *inner]
    group = made.sharing.group
    if warps:
        first = f"((long long)blockIdx.x * {warps} + threadIdx.x / 32)" + (f" * {group}" if group > 1 else "")
        if "grid_stride" in options:
            loop = f"for (long long row = {first}; row < K_ROWS; row += (long long)gridDim.x * {warps * group}) {{"
            return [loop, *indented(inner), "}"]
        return [f"const long long row = {first};", "if (row >= K_ROWS) return;", *inner]
    many = options.number("rows_per_block", "rows", 1)
    if many > 1:
        start = f"(long long)blockIdx.x * {many}"
        loop = f"for (long long row = {start}; row < {start} + {many} && row < K_ROWS; ++row) {{  // rows_per_block"
        return [loop, *indented(inner), "}"]
    if "grid_stride" in options:
        loop = "for (long long row = blockIdx.x; row < K_ROWS; row += gridDim.x) {  // grid_stride"
        return [loop, *indented(inner), "}"]
    if "cluster_rows" in options:
        return ["const long long row = blockIdx.x / K_CLUSTER;", *inner]
    return ["const long long row = blockIdx.x;", *inner]


def _plan(operator: Rows, options: Options, device: Device, made: Body, warps: int) -> LaunchPlan:
    group = made.sharing.group
    if not operator.contiguous:
        slices = options.number("column_slices", "slices", 1)
        width = lanes(operator, options)
        grid = f"{operator.outer} * ceil_div({operator.inner}, K_BLOCK / {slices} * {width})"
    elif warps:
        grid = str(-(-operator.rows // (warps * group)))
    else:
        grid = str(-(-operator.rows // options.number("rows_per_block", "rows", 1)))
    if "grid_stride" in options:
        grid = f"min({options.number('grid_stride', 'blocks_per_unit', 8) * max(device.units, 1)}, {grid})"
    cluster = options.number("cluster_rows", "blocks", 1)
    if cluster > 1:
        grid = str(operator.rows * cluster)
    shared = f"{share(operator, options) * len(operator.elements) * 4}" if made.sharing.storage == "shared" else "0"
    names = (*operator.inputs, *(name for name, _ in operator.outputs))
    block = str(32 * warps) if warps else "K_BLOCK"
    launch = Launch(
        kernel="reduce_rows",
        args=names,
        grid=(grid,),
        block=(block,),
        shared_bytes=shared,
        cluster=(str(cluster),) if cluster > 1 else (),
    )
    tunables = {} if warps else {"K_BLOCK": block_choices(operator, options, device)}
    return LaunchPlan(launches=(launch,), tunables=tunables)


def block_choices(operator: Rows, options: Options, device: Device) -> Tunable:
    """Return the block sizes that suit the row length.

    Not many more threads than packs, not more registers than allowed.
    """
    width = lanes(operator, options)
    useful = -(-share(operator, options) // width) if operator.contiguous else operator.inner * 4
    fitting = [size for size in BLOCKS if size == BLOCKS[0] or size // 2 < useful]
    if "register_rows" in options:
        fitting = [size for size in fitting if items(operator, options, size) <= MAX_ITEMS] or [BLOCKS[-1]]
    least = 512 if _many_columns(operator, options, device) else 256
    default = next((size for size in fitting if size >= least), fitting[-1])
    if "register_rows" in options and operator.contiguous:
        default = next((size for size in fitting if items(operator, options, size) <= MAX_ITEMS // 2), fitting[-1])
    if "shared_rows" in options:
        # large stages leave room for few blocks: those must be large too, or too few loads are in flight
        staged = share(operator, options) * len(operator.elements) * 4
        resident = max(1, device.shared_bytes_per_block // (staged + 1024))
        default = next((size for size in fitting if size * resident >= 1024), fitting[-1])
    return Tunable(value=default, choices=tuple(fitting))


def _many_columns(operator: Rows, options: Options, device: Device) -> bool:
    """Return whether reduced columns fill the device several times with blocks of 512 threads."""
    columns = 512 // options.number("column_slices", "slices", 1) * lanes(operator, options)
    blocks = operator.outer * -(-operator.inner // columns)
    return not operator.contiguous and not operator.maps and blocks >= MANY_BLOCKS * max(device.units, 1)
