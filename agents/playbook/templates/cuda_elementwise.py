"""Pointwise operators on the ``cuda`` target: every thread handles one or more packs of neighbouring elements."""

from __future__ import annotations

from agents.playbook.expressions import Emitter, Expr
from agents.playbook.operators import Operand, Pointwise
from agents.playbook.ordering import walk
from agents.playbook.templates.cuda_math import bounds, fast_division, functions
from agents.playbook.templates.cuda_packs import lanes, packs, type_of, types_of
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.problem import Target

BLOCKS = (64, 128, 256, 512, 1024)

BROADCAST = """
template <long long DIV, long long MOD>
__device__ __forceinline__ float broadcast(const float* p, long long i) { return $LOAD; }
"""

BROADCAST_HALF = """
template <long long DIV, long long MOD, class T>
__device__ __forceinline__ float broadcast(const T* p, long long i) { return T::low($LOAD); }
"""


def render(operator: Pointwise, options: Options, device: Device) -> Kernel:
    """Return the kernel of a pointwise operator under the given techniques."""
    width = lanes(operator, options)
    items = options.number("thread_coarsening", "items", 1)
    expression = fast_division(operator.expression, options)
    source = Source(f"Pointwise map of {operator.size} elements, {len(operator.operands)} operand(s)", options)
    source.constants(size=operator.size)
    source.add(packs(operator, options, operator.streamed))
    source.add(functions([expression], options))
    repeated = {item.name in operator.halves for item in operator.broadcast if item.mod > 1}
    if False in repeated:
        source.add(BROADCAST, LOAD="__ldg(p + i / DIV % MOD)" if "read_only_cache" in options else "p[i / DIV % MOD]")
    if True in repeated:
        place = "p[i / DIV % MOD].bits"
        source.add(BROADCAST_HALF, LOAD=f"__ldg(&{place})" if "read_only_cache" in options else place)
    names = [item.name for item in operator.operands]
    source.add(
        """
        __device__ __forceinline__ float compute($PARAMETERS) {
            $BODY
        }
        """,
        PARAMETERS=", ".join(f"float v_{name}" for name in names),
        BODY=_body(expression),
    )
    step = f"K_BLOCK * {items} * K_VEC" if items > 1 else "K_BLOCK * K_VEC"
    source.add(
        """
        extern "C" __global__ void $BOUNDS map_elements($ARGUMENTS) {
            $LOOP
        }
        """,
        BOUNDS=bounds(options, "K_BLOCK"),
        ARGUMENTS=arguments(names, [(type_of(operator, operator.output), operator.output)], types_of(operator)),
        LOOP=_loop(operator, options, step, items, width),
    )
    blocks = f"ceil_div({operator.size}, K_BLOCK * {items * width})"
    if "grid_stride" in options:
        resident = options.number("grid_stride", "blocks_per_unit", 8) * max(device.units, 1)
        blocks = f"min({resident}, {blocks})"
    launch = Launch(kernel="map_elements", args=(*names, operator.output), grid=(blocks,), block=("K_BLOCK",))
    plan = LaunchPlan(launches=(launch,), tunables={"K_BLOCK": Tunable(value=256, choices=BLOCKS)})
    return source.kernel(Target.CUDA, plan)


def _body(expression: Expr) -> list[str]:
    names = {node: f"v_{node.name}" for node in walk([expression]) if node.op == "input"}
    emitter = Emitter(names)
    (result,) = emitter.emit(expression)
    return [*(f"const auto {name} = {text};" for name, text in emitter.lines), f"return {result};"]


def _loop(operator: Pointwise, options: Options, step: str, items: int, width: int) -> list[str]:
    lines = _tile(operator, items, width)
    start = f"(long long)blockIdx.x * ({step})"
    if "grid_stride" not in options:
        return [f"const long long first = {start} + threadIdx.x * K_VEC;", *lines]
    factor = options.number("loop_unrolling", "factor", 1)
    pragma = [f"#pragma unroll {factor}"] if factor > 1 else []
    stride = f"first += (long long)gridDim.x * ({step})"
    head = f"for (long long first = {start} + threadIdx.x * K_VEC; first < K_SIZE; {stride}) {{  // grid_stride"
    return [*pragma, head, *(f"    {line}" for line in lines), "}"]


def _tile(operator: Pointwise, items: int, width: int) -> list[str]:
    """Return the work of one thread from element ``first`` on: whole packs first, then what is left of the tensor."""
    loads, values = [], []
    for item in operator.operands:
        if item in operator.full:
            loads.append(f"const Pack a_{item.name} = load_pack(p_{item.name} + i);")
            values.append(f"a_{item.name}.v[k]")
        else:
            values.append(_broadcast(item, "i + k"))
    store = [
        "Pack result;",
        "#pragma unroll",
        f"for (int k = 0; k < K_VEC; ++k) result.v[k] = compute({', '.join(values)});",
        f"store_pack(p_{operator.output} + i, result);",
    ]
    if items == 1:
        lines = ["const long long i = first;", "if (i + K_VEC <= K_SIZE) {", *_indent([*loads, *store])]
        if width > 1 and operator.size % width:
            return [*lines, "} else {", *_indent(_tail(operator)), "}"]
        return [*lines, "}"]
    return _coarse(operator, items, width, values)


def _coarse(operator: Pointwise, items: int, width: int, values: list[str]) -> list[str]:
    """Return ``items`` packs a thread, a block apart: all loads are issued before the first value is used."""
    full = operator.full
    texts = [text.replace(".v[k]", "[item].v[k]") for text in values]
    lines = [f"Pack {', '.join(f'a_{item.name}[{items}]' for item in full)};  // thread_coarsening"]
    loop = f"for (int item = 0; item < {items}; ++item) {{"
    index = "const long long i = first + (long long)item * K_BLOCK * K_VEC;"
    loads = [f"a_{item.name}[item] = load_pack(p_{item.name} + i);" for item in full]
    lines += ["#pragma unroll", loop, *_indent([index, "if (i + K_VEC <= K_SIZE) {", *_indent(loads), "}"]), "}"]
    store = [
        "Pack result;",
        "#pragma unroll",
        f"for (int k = 0; k < K_VEC; ++k) result.v[k] = compute({', '.join(texts)});",
        f"store_pack(p_{operator.output} + i, result);",
    ]
    guarded = ["if (i + K_VEC <= K_SIZE) {", *_indent(store), "}"]
    if width > 1 and operator.size % width:
        guarded = [*guarded[:-1], "} else {", *_indent(_tail(operator)), "}"]
    return [*lines, "#pragma unroll", loop, *_indent([index, *guarded]), "}"]


def _tail(operator: Pointwise) -> list[str]:
    values = ", ".join(
        f"p_{item.name}[j]" if item in operator.full else _broadcast(item, "j") for item in operator.operands
    )
    return [f"for (long long j = i; j < K_SIZE; ++j) p_{operator.output}[j] = compute({values});"]


def _broadcast(item: Operand, index: str) -> str:
    if item.mod == 1:
        return f"p_{item.name}[0]"
    return f"broadcast<{item.div}, {item.mod}>(p_{item.name}, {index})"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
