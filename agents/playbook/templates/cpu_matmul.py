"""Matrix products on the ``cpu`` target: plain or vectorised loops. The blocked product is ``cpu_gemm``'s."""

from __future__ import annotations

from agents.playbook.operators import Matmul
from agents.playbook.templates import cpu_gemm
from agents.playbook.templates.cpu_math import SCALAR_FUNCTIONS, only_used, vector_types
from agents.playbook.templates.matmul_text import address, finished, input_names, title
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Workspace
from cupilot.domain.problem import Target

SETTLE = 256
"""Products that one float32 accumulator sums before it is put away."""

_DOT = """
// One element of the result from k in [first, last): both operands are contiguous along k.
static inline float element(const float* a, const float* b, long long first, long long last) {
    double total = 0;
    for (long long begin = first; begin < last; begin += K_SETTLE) {
        const long long end = begin + K_SETTLE < last ? begin + K_SETTLE : last;
        long long k = begin;
        vf sum[4] = {};
        for (; k + 4 * SIMD <= end; k += 4 * SIMD) {
            #pragma GCC unroll 4
            for (int u = 0; u < 4; ++u) sum[u] += load(Vector{}, a + k + u * SIMD) * load(Vector{}, b + k + u * SIMD);
        }
        for (; k + SIMD <= end; k += SIMD) sum[0] += load(Vector{}, a + k) * load(Vector{}, b + k);
        const vf all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        float words[SIMD];
        store(words, all);
        for (int half = SIMD / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) words[lane] += words[lane + half];
        for (; k < end; ++k) words[0] += a[k] * b[k];
        total += words[0];
    }
    return (float)total;
}
"""
_PLAIN = """
// One element of the result from k in [first, last), summed in float64.
static inline float element(const float* a, const float* b, long long first, long long last) {
    double total = 0;
    $UNROLL
    for (long long k = first; k < last; ++k) total += (double)a[k * $AK] * b[k * $BK];
    return (float)total;
}
"""
_COLUMNS = """
// SIMD neighbouring columns of the result from k in [first, last).
static inline vf columns(const float* a, const float* b, long long first, long long last) {
    vf total = {};
    for (long long begin = first; begin < last; begin += K_SETTLE) {
        const long long end = begin + K_SETTLE < last ? begin + K_SETTLE : last;
        vf sum = {};
        $UNROLL
        for (long long k = begin; k < end; ++k) sum += a[k * $AK] * load(Vector{}, b + k * $BK);
        total += sum;
    }
    return total;
}
"""


def render(operator: Matmul, options: Options) -> Kernel:
    """Return the kernel of a matrix product under the given techniques."""
    if "micro_kernel" in options:
        return cpu_gemm.render(operator, options)
    simd, parts = "simd" in options, options.number("split_k", "parts", 1)
    a, b = operator.a, operator.b
    dot = simd and a.col == 1 and b.row == 1
    by_columns = simd and not dot and b.col == 1
    source = Source(title(operator), options)
    source.constants(batches=operator.batches, m=operator.m, n=operator.n, k=operator.k, settle=SETTLE)
    source.constants(parts=parts, part=-(-operator.k // parts))
    source.add(only_used(SCALAR_FUNCTIONS, set()))
    if simd:
        source.add(only_used(vector_types(options), set()))
    factor = options.number("loop_unrolling", "factor", 1)
    unroll = [f"#pragma GCC unroll {factor}"] if factor > 1 else []
    source.add(_DOT) if dot else source.add(_PLAIN, UNROLL=unroll, AK=a.col, BK=b.row)
    if by_columns:
        source.add(_COLUMNS, UNROLL=unroll, AK=a.col, BK=b.row)
    names = input_names(operator)
    pragma = f"#pragma omp parallel for schedule({options.text('threads', 'schedule')})"
    source.add(
        """
        extern "C" void multiply($ARGUMENTS) {
            $PRAGMA
            for (long long item = 0; item < K_BATCHES * K_M * K_PARTS; ++item) {
                const long long part = item % K_PARTS, i = item / K_PARTS % K_M, batch = item / K_PARTS / K_M;
                const long long first = part * K_PART, last = first + K_PART < K_K ? first + K_PART : K_K;
                const float* const a = $A;
                const float* const b = $B;
                float* const to = $TO;
                long long j = 0;
                $VECTORS
                for (; j < K_N; ++j) to[j] = $SCALAR;
            }
            $SECOND
        }
        """,
        ARGUMENTS=arguments(names, [("float", operator.output), *([("float", "parts")] if parts > 1 else [])]),
        PRAGMA=[pragma] if "threads" in options else [],
        A=address(a, "batch", "i", "0"),
        B=address(b, "batch", "0", "0"),
        TO=f"p_{operator.output} + (batch * K_M + i) * K_N" if parts == 1 else "p_parts + item * K_N",
        VECTORS=_vectors(operator, parts) if by_columns else [],
        SCALAR=_finished(operator, f"element(a, b + j * {b.col}, first, last)", "j", parts),
        SECOND=_second_stage(operator, pragma if "threads" in options else "") if parts > 1 else [],
    )
    launch = Launch(kernel="multiply", args=(*names, operator.output, *(("parts",) if parts > 1 else ())))
    size = operator.batches * operator.m * operator.n * parts * 4
    workspace = (Workspace(name="parts", bytes=str(size)),) if parts > 1 else ()
    return source.kernel(Target.CPU, LaunchPlan(launches=(launch,), workspace=workspace))


def _finished(operator: Matmul, value: str, column: str, parts: int) -> str:
    if parts > 1:
        return value
    return finished(operator, value, _bias(operator, column))


def _bias(operator: Matmul, column: str) -> str:
    return f"*({address(operator.bias, 'batch', 'i', column)})" if operator.bias else ""


def _vectors(operator: Matmul, parts: int) -> list[str]:
    value = "columns(a, b + j, first, last)"
    if parts == 1 and operator.bias is not None:
        kind = "splat" if operator.bias.col == 0 else "load"
        pointer = address(operator.bias, "batch", "i", "j")
        bias = f"splat(Vector{{}}, *({pointer}))" if kind == "splat" else f"load(Vector{{}}, {pointer})"
        value = finished(operator, value, bias)
    elif parts == 1:
        value = finished(operator, value, "")
    return [f"for (; j + SIMD <= K_N; j += SIMD) store(to + j, {value});"]


def _second_stage(operator: Matmul, pragma: str) -> list[str]:
    return [
        "// split_k: the parts of each element are added up",
        *([pragma] if pragma else []),
        "for (long long row = 0; row < K_BATCHES * K_M; ++row) {",
        "    const long long i = row % K_M, batch = row / K_M;",
        "    (void)i, (void)batch;",
        "    for (long long j = 0; j < K_N; ++j) {",
        "        double total = 0;",
        "        for (long long part = 0; part < K_PARTS; ++part) total += p_parts[(row * K_PARTS + part) * K_N + j];",
        f"        p_{operator.output}[row * K_N + j] = {finished(operator, '(float)total', _bias(operator, 'j'))};",
        "    }",
        "}",
    ]
