"""Pointwise operators on the ``cpu`` target: one loop over the output, all operations fused."""

from __future__ import annotations

from agents.playbook.expressions import Emitter, Expr
from agents.playbook.operators import Operand, Pointwise
from agents.playbook.ordering import walk
from agents.playbook.templates.cpu_math import prelude
from agents.playbook.templates.cpu_stores import BROADCAST_SCALAR, BROADCAST_VECTOR, STREAMING_STORES
from agents.playbook.templates.source import Options, Source, arguments, fill
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target

CHUNK = 8192
"""Elements that a thread takes at a time: 32 KiB, half of a usual L1 cache or a small part of L2."""

_VECTOR_LOOP = """
for (; i + $STEP <= end; i += $STEP) {
    $PREFETCH
    $UNROLL
    for (long long j = i; j < i + $STEP; j += SIMD) {
        $STORE(p_$OUT + j, compute(Vector{}$LOADS));
    }
}
"""


def render(operator: Pointwise, options: Options) -> Kernel:
    """Return the kernel of a pointwise operator under the given techniques."""
    simd = "simd" in options
    source = Source(f"Pointwise map of {operator.size} elements, {len(operator.operands)} operand(s)", options)
    source.constants(size=operator.size, chunk=CHUNK)
    source.add(prelude([operator.expression], options))
    if operator.broadcast:
        source.add(BROADCAST_VECTOR if simd else BROADCAST_SCALAR)
    if "nontemporal_stores" in options:
        source.add(STREAMING_STORES)
    source.add(
        """
        template <class Lanes$TYPES>
        static inline __attribute__((always_inline)) auto compute(Lanes$PARAMETERS) {
            $BODY
        }
        """,
        TYPES="".join(f", class T{n}" for n in range(len(operator.operands))),
        PARAMETERS="".join(f", T{n} v_{item.name}" for n, item in enumerate(operator.operands)),
        BODY=_body(operator),
    )
    names = [item.name for item in operator.operands]
    source.add(
        """
        extern "C" void map_elements($ARGUMENTS) {
            $PRAGMA
            for (long long begin = 0; begin < K_SIZE; begin += K_CHUNK) {
                const long long end = begin + K_CHUNK < K_SIZE ? begin + K_CHUNK : K_SIZE;
                long long i = begin;
                $VECTORS
                for (; i < end; ++i) store(p_$OUT + i, compute(Scalar{}$LOADS));
                $FENCE
            }
        }
        """,
        ARGUMENTS=arguments(names, [("float", operator.output)]),
        PRAGMA=_pragma(options),
        VECTORS=_vectors(operator, options) if simd else [],
        OUT=operator.output,
        LOADS="".join(f", {_load(operator, item, 'Scalar', 'i')}" for item in operator.operands),
        FENCE=["drain_stores();"] if "nontemporal_stores" in options else [],
    )
    launch = Launch(kernel="map_elements", args=(*names, operator.output))
    return source.kernel(Target.CPU, LaunchPlan(launches=(launch,)))


def _pragma(options: Options) -> list[str]:
    if "threads" not in options:
        return []
    return [f"#pragma omp parallel for schedule({options.text('threads', 'schedule')})"]


def _body(operator: Pointwise) -> list[str]:
    names: dict[Expr, str] = {node: f"v_{node.name}" for node in walk([operator.expression]) if node.op == "input"}
    emitter = Emitter(names)
    (result,) = emitter.emit(operator.expression)
    return [*(f"const auto {name} = {text};" for name, text in emitter.lines), f"return {result};"]


def _vectors(operator: Pointwise, options: Options) -> list[str]:
    unroll = options.number("loop_unrolling", "factor", 1)
    distance = options.number("prefetch", "distance", 0)
    loads = "".join(f", {_load(operator, item, 'Vector', 'j')}" for item in operator.operands)
    text = fill(
        _VECTOR_LOOP,
        STEP="SIMD" if unroll == 1 else f"{unroll} * SIMD",
        PREFETCH=[f"__builtin_prefetch(p_{item.name} + i + {distance});" for item in operator.full if distance],
        UNROLL=[f"#pragma GCC unroll {unroll}"] if unroll > 1 else [],
        STORE="stream" if "nontemporal_stores" in options else "store",
        OUT=operator.output,
        LOADS=loads,
    )
    rest = fill(
        """
        for (; i + SIMD <= end; i += SIMD) $STORE(p_$OUT + i, compute(Vector{}$LOADS));
        """,
        STORE="stream" if "nontemporal_stores" in options else "store",
        OUT=operator.output,
        LOADS="".join(f", {_load(operator, item, 'Vector', 'i')}" for item in operator.operands),
    )
    return text.split("\n") + (rest.split("\n") if unroll > 1 else [])


def _load(operator: Pointwise, item: Operand, lanes: str, index: str) -> str:
    """Return C++ that reads an operand for the element, or the vector of elements, at ``index``."""
    if item.mod == 1:
        return f"splat({lanes}{{}}, p_{item.name}[0])"
    if item in operator.full:
        return f"load({lanes}{{}}, p_{item.name} + {index})"
    return f"broadcast<{item.div}, {item.mod}>({lanes}{{}}, p_{item.name}, {index})"
