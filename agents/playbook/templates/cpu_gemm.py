"""The blocked matrix product on the ``cpu`` target: packed blocks under a register-blocked micro-kernel.

After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008), and Van Zee and van de Geijn,
"BLIS" (2015): blocks of B for the last cache, of A for the second, a rectangle of the result in registers.
"""

from __future__ import annotations

from agents.playbook.operators import Matmul
from agents.playbook.templates.cpu_math import SCALAR_FUNCTIONS, only_used, vector_types
from agents.playbook.templates.matmul_text import address, finished, input_names, title
from agents.playbook.templates.source import Options, Source, arguments
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Workspace
from cupilot.domain.problem import Target

_PACK = """
// packing: ROWS lines of an operand, element (line, k) at from[line * line_stride + k * k_stride], stored k by k;
// lines beyond `lines` are zero.
template <int ROWS>
static inline void pack_panel(const float* from, long long line_stride, long long k_stride, long long lines,
                              long long depth, float* to) {
    if (lines == ROWS && line_stride == 1) {
        for (long long k = 0; k < depth; ++k)
            for (int line = 0; line < ROWS; ++line) to[k * ROWS + line] = from[line + k * k_stride];
        return;
    }
    for (int line = 0; line < ROWS; ++line)
        for (long long k = 0; k < depth; ++k)
            to[k * ROWS + line] = line < lines ? from[line * line_stride + k * k_stride] : 0.0f;
}
"""

_MICRO = """
// micro_kernel: a K_MR by K_NR rectangle of the result in $REGISTERS vector registers
static inline void micro_kernel(const float* a, const float* b, long long depth, float* tile) {
    $DECLARE
    $UNROLL
    for (long long k = 0; k < depth; ++k) {
        $LOADS
        $MULTIPLY
    }
    $STORE
}
"""


def render(operator: Matmul, options: Options) -> Kernel:
    """Return the blocked product; the strategy has ``micro_kernel``, ``cache_blocking`` and ``simd``."""
    blocks = _blocks(operator, options)
    source = Source(title(operator), options)
    source.constants(batches=operator.batches, m=operator.m, n=operator.n, k=operator.k)
    source.constants(**blocks)
    source.add(only_used(SCALAR_FUNCTIONS, set()))
    source.add(only_used(vector_types(options), set()))
    source.add(_PACK)
    rows, vectors = options.number("micro_kernel", "rows", 8), options.number("micro_kernel", "vectors", 2)
    _add_micro_kernel(source, rows, vectors, options, packed_a=_packs_a(options))
    names = input_names(operator)
    _add_driver(source, operator, options, names)
    args = (*names, operator.output, "packed_a", "packed_b")
    packed_a = blocks["m_panels"] * blocks["mr"] * blocks["kc"] * 4 if _packs_a(options) else 64
    packed_b = blocks["n_panels"] * blocks["nr"] * blocks["kc"] * 4
    workspace = (Workspace(name="packed_a", bytes=str(packed_a)), Workspace(name="packed_b", bytes=str(packed_b)))
    plan = LaunchPlan(launches=(Launch(kernel="multiply", args=args),), workspace=workspace)
    return source.kernel(Target.CPU, plan)


def _packs_a(options: Options) -> bool:
    return options.text("packing", "operands", "b") == "both"


def _blocks(operator: Matmul, options: Options) -> dict[str, int]:
    mr = options.number("micro_kernel", "rows", 8)
    nr = options.number("micro_kernel", "vectors", 2) * options.number("simd", "width", 16)
    kc = min(options.number("cache_blocking", "block_k", 256), operator.k)
    mc = -(-min(options.number("cache_blocking", "block_m", 96), operator.m) // mr) * mr
    nc = -(-min(options.number("cache_blocking", "block_n", 1024), operator.n) // nr) * nr
    return {
        "mr": mr,
        "nr": nr,
        "kc": kc,
        "mc": mc,
        "nc": nc,
        "m_panels": -(-operator.m // mr),
        "n_panels": nc // nr,
    }


def _add_micro_kernel(source: Source, rows: int, vectors: int, options: Options, *, packed_a: bool) -> None:
    factor = options.number("loop_unrolling", "factor", 1)
    names = [[f"c{r}_{v}" for v in range(vectors)] for r in range(rows)]
    multiply = []
    for r in range(rows):
        read = f"a[k * K_MR + {r}]" if packed_a else f"a[{r} * line_stride + k * k_stride]"
        terms = " ".join(f"{names[r][v]} += a{r} * b{v};" for v in range(vectors))
        multiply.append(f"const float a{r} = {read}; {terms}")
    text = _MICRO
    if not packed_a:
        text = text.replace("const float* a, const", "const float* a, long long line_stride, long long k_stride, const")
    source.add(
        text,
        REGISTERS=rows * vectors,
        DECLARE=[f"vf {', '.join(f'{name} = {{}}' for name in line)};" for line in names],
        UNROLL=[f"#pragma GCC unroll {factor}"] if factor > 1 else [],
        LOADS=[f"const vf b{v} = load(Vector{{}}, b + k * K_NR + {v} * SIMD);" for v in range(vectors)],
        MULTIPLY=multiply,
        STORE=[f"store(tile + {r} * K_NR + {v} * SIMD, {names[r][v]});" for r in range(rows) for v in range(vectors)],
    )


def _add_driver(source: Source, operator: Matmul, options: Options, names: tuple[str, ...]) -> None:
    schedule = options.text("threads", "schedule", "static")
    loop = [f"#pragma omp for schedule({schedule})"] if "threads" in options else []
    a, b = operator.a, operator.b
    pack_a = [
        *loop,
        "for (long long panel = 0; panel < K_M_PANELS; ++panel) {",
        "    const long long i = panel * K_MR, lines = K_M - i < K_MR ? K_M - i : K_MR;",
        f"    pack_panel<K_MR>({address(a, 'batch', 'i', 'pc')}, {a.row}, {a.col}, lines, depth,",
        "                     p_packed_a + panel * K_MR * K_KC);",
        "}",
    ]
    call = "micro_kernel(p_packed_a + i / K_MR * (K_MR * K_KC), panel, depth, tile);"
    if not _packs_a(options):
        call = f"micro_kernel({address(a, 'batch', 'i', 'pc')}, {a.row}, {a.col}, panel, depth, tile);"
    bias = f"*({address(operator.bias, 'batch', '(i + r)', '(j + c)')})" if operator.bias else ""
    source.add(
        """
        // Adds a computed rectangle to the result; what lies beyond its edge is dropped.
        static inline void add_tile($BIAS_PARAMETER float* to, const float* tile, long long batch, long long i,
                                    long long j, bool first, bool last) {
            const long long rows = K_M - i < K_MR ? K_M - i : K_MR, cols = K_N - j < K_NR ? K_N - j : K_NR;
            for (long long r = 0; r < rows; ++r)
                for (long long c = 0; c < cols; ++c) {
                    const float sum = first ? tile[r * K_NR + c] : to[r * K_N + c] + tile[r * K_NR + c];
                    to[r * K_N + c] = last ? $FINISHED : sum;
                }
            (void)batch;
        }
        """,
        BIAS_PARAMETER=f"const float* p_{operator.bias.name}," if operator.bias else "",
        FINISHED=finished(operator, "sum", bias),
    )
    source.add(
        """
        extern "C" void multiply($ARGUMENTS) {
            $PARALLEL
            for (long long batch = 0; batch < K_BATCHES; ++batch)
                for (long long jc = 0; jc < K_N; jc += K_NC)
                    for (long long pc = 0; pc < K_K; pc += K_KC) {
                        const long long depth = K_K - pc < K_KC ? K_K - pc : K_KC;
                        const long long width = K_N - jc < K_NC ? K_N - jc : K_NC;
                        const long long panels = (width + K_NR - 1) / K_NR;
                        $PACK_A
                        $LOOP
                        for (long long p = 0; p < panels; ++p) {
                            const long long j = jc + p * K_NR, lines = K_N - j < K_NR ? K_N - j : K_NR;
                            pack_panel<K_NR>($B, $B_LINE, $B_K, lines, depth, p_packed_b + p * K_NR * K_KC);
                        }
                        $LOOP
                        for (long long block = 0; block < (K_M + K_MC - 1) / K_MC * panels; ++block) {
                            const long long ic = block / panels * K_MC, p = block % panels, j = jc + p * K_NR;
                            const float* const panel = p_packed_b + p * K_NR * K_KC;
                            alignas(64) float tile[K_MR * K_NR];
                            for (long long i = ic; i < ic + K_MC && i < K_M; i += K_MR) {
                                $CALL
                                add_tile($BIAS p_$OUT + (batch * K_M + i) * K_N + j, tile, batch, i, j, pc == 0,
                                         pc + K_KC >= K_K);
                            }
                        }
                    }
        }
        """,
        ARGUMENTS=arguments(names, [("float", operator.output), ("float", "packed_a"), ("float", "packed_b")]),
        PARALLEL=["#pragma omp parallel"] if "threads" in options else [],
        PACK_A=pack_a if _packs_a(options) else [],
        LOOP=loop,
        B=address(b, "batch", "pc", "j"),
        B_LINE=b.col,
        B_K=b.row,
        CALL=_edges(operator, call) if not _packs_a(options) else [call],
        BIAS=f"p_{operator.bias.name}," if operator.bias else "",
        OUT=operator.output,
    )


def _edges(operator: Matmul, call: str) -> list[str]:
    """Return the rectangles at the edges.

    Without packed A the last one may reach beyond the last row, and is computed row by row.
    """
    a = operator.a
    start = address(a, "batch", "(i + r)", "pc")
    return [
        "if (i + K_MR <= K_M) {",
        f"    {call}",
        "} else {",
        "    for (long long r = 0; i + r < K_M; ++r)",
        "        for (int v = 0; v < K_NR / SIMD; ++v) {",
        f"            const float* const from = {start};",
        "            vf sum = {};",
        "            for (long long k = 0; k < depth; ++k)",
        f"                sum += from[k * {a.col}] * load(Vector{{}}, panel + k * K_NR + v * SIMD);",
        "            store(tile + r * K_NR + v * SIMD, sum);",
        "        }",
        "}",
    ]
