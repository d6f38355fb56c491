"""Tiled CUDA matrix products on the scalar units: shared-memory tiles, register rectangles, float32 throughout."""

from __future__ import annotations

from agents.playbook.operators import Matmul
from agents.playbook.templates.cuda_math import bounds
from agents.playbook.templates.cuda_matmul_copies import (
    ASYNC,
    TileCopy,
    contiguous_axis,
    fetching,
    indented,
    packs_aligned,
    starting,
)
from agents.playbook.templates.cuda_matmul_parts import (
    COPIED,
    Tiling,
    add_place,
    operand_pointers,
    pipeline,
    result_place,
    result_value,
)
from agents.playbook.templates.matmul_text import input_names
from agents.playbook.templates.source import Options, Source, arguments, fill


def add_kernel(source: Source, operator: Matmul, options: Options, tiling: Tiling) -> int:
    """Add the kernel ``multiply``; bytes of dynamic shared memory that a block needs."""
    place = [*add_place(source, operator, tiling), *operand_pointers(operator)]
    source.add(COPIED, PAD=tiling.pad)
    asynchronous = "async_copy" in options
    if asynchronous:
        source.add(ASYNC)
    wide = "vector_loads" in options
    chunk_m, chunk_n = min(tiling.rows, 4), min(tiling.cols, 4)
    source.add(
        """
        constexpr int ROWS = $ROWS, COLS = $COLS;  // register_blocking: the rectangle of one thread
        constexpr int CHUNK_M = $CHUNK_M, CHUNK_N = $CHUNK_N;  // neighbours within it; chunks lie a stride apart
        constexpr int STRIDE_M = TILE_M / (ROWS / CHUNK_M), STRIDE_N = TILE_N / (COLS / CHUNK_N);
        constexpr int PITCH_A = TILE_M + PAD, PITCH_B = TILE_N + PAD;  // bank_padding
        struct alignas(4 * CHUNK_M) ChunkA { float v[CHUNK_M]; };
        struct alignas(4 * CHUNK_N) ChunkB { float v[CHUNK_N]; };
        struct alignas(16) Four { float v[4]; };
        """,
        ROWS=tiling.rows,
        COLS=tiling.cols,
        CHUNK_M=chunk_m,
        CHUNK_N=chunk_n,
    )
    tiles = _tiles(operator, tiling, wide=wide, asynchronous=asynchronous)
    out = operator.output if tiling.parts == 1 else "parts"
    body = [
        *place,
        "extern __shared__ __align__(16) float tiles_a[];",
        "float* const tiles_b = tiles_a + STAGES * TILE_K * PITCH_A;",
        *_rectangle(tiling),
        "float sums[ROWS][COLS] = {};",
    ]
    body += starting(tiles) if asynchronous else fetching(tiles)
    body += _compute(options)
    double = "double_buffering" in options
    body += pipeline(tiling.stages, asynchronous=asynchronous, double=double, late="TILE_K - TILE_K / 4")
    body += _epilogue(operator, tiling, wide=wide and tiling.cols >= 4)
    source.add(
        """
        extern "C" __global__ void $BOUNDS multiply($ARGUMENTS) {
            $BODY
        }
        """,
        BOUNDS=bounds(options, "THREADS"),
        ARGUMENTS=arguments(input_names(operator), [("float", out)]),
        BODY=body,
    )
    return shared_bytes(tiling)


def _rectangle(tiling: Tiling) -> list[str]:
    """Return statements on the place of a thread's rectangle.

    A warp has four by eight of them where these divide the tile, so that it reads few different values.
    """
    down, across = tiling.m // tiling.rows, tiling.n // tiling.cols
    if down % 4 or across % 8:
        return [
            "const int row = threadIdx.x / (TILE_N / COLS) * CHUNK_M, col = threadIdx.x % (TILE_N / COLS) * CHUNK_N;"
        ]
    return [
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        f"const int row = (warp / {across // 8} * 4 + lane / 16 * 2 + lane % 2) * CHUNK_M;",
        f"const int col = (warp % {across // 8} * 8 + lane / 2 % 8) * CHUNK_N;",
    ]


def shared_bytes(tiling: Tiling) -> int:
    """Return the shared memory of a block, in bytes."""
    return tiling.stages * tiling.k * (tiling.m + tiling.n + 2 * tiling.pad) * 4


def _tiles(operator: Matmul, tiling: Tiling, *, wide: bool, asynchronous: bool) -> list[TileCopy]:
    """Return both operands' tiles, with k as the slow axis, so that neighbours along the result are neighbours in
    memory.
    """
    made = []
    for name, item, size, lines in (("a", operator.a, operator.m, tiling.m), ("b", operator.b, operator.n, tiling.n)):
        by_row = name == "b"
        axis = contiguous_axis(item, depth_is_row=by_row)
        aligned = wide and packs_aligned(item, size, operator.k, depth_is_row=by_row)
        scattered = axis == "depth"
        made.append(
            TileCopy(
                name=name,
                item=item,
                axis="depth" if scattered else "line",
                width=4 if aligned and not (scattered and asynchronous) else 1,
                lines=lines,
                depth=tiling.k,
                size=size,
                reach=operator.k,
                threads=tiling.threads,
                place=f"(buffer * TILE_K + depth) * PITCH_{name.upper()} + line",
                scattered=scattered,
            )
        )
    return made


def _compute(options: Options) -> list[str]:
    factor = options.number("loop_unrolling", "factor", 0)
    text = """
    auto compute = [&](int buffer, int first, int end) {
        int at_a = buffer * TILE_K * PITCH_A + row, at_b = buffer * TILE_K * PITCH_B + col;
        asm volatile("" : "+r"(at_a), "+r"(at_b));  // computed once, not again for each k
        const float* const from_a = tiles_a + at_a;
        const float* const from_b = tiles_b + at_b;
        $UNROLL
        for (int k = first; k < end; ++k) {
            ChunkA a_values[ROWS / CHUNK_M];
            ChunkB b_values[COLS / CHUNK_N];
            #pragma unroll
            for (int r = 0; r < ROWS / CHUNK_M; ++r)
                a_values[r] = *reinterpret_cast<const ChunkA*>(from_a + k * PITCH_A + r * STRIDE_M);
            #pragma unroll
            for (int c = 0; c < COLS / CHUNK_N; ++c)
                b_values[c] = *reinterpret_cast<const ChunkB*>(from_b + k * PITCH_B + c * STRIDE_N);
            #pragma unroll
            for (int r = 0; r < ROWS; ++r)
                #pragma unroll
                for (int n = 0; n < COLS; ++n) {  // in alternating direction, so that operands are used again
                    const int c = r % 2 ? COLS - 1 - n : n;
                    sums[r][c] += a_values[r / CHUNK_M].v[r % CHUNK_M] * b_values[c / CHUNK_N].v[c % CHUNK_N];
                }
        }
    };
    """
    return fill(text, UNROLL=[f"#pragma unroll {factor}"] if factor else ["#pragma unroll"]).split("\n")


def _epilogue(operator: Matmul, tiling: Tiling, *, wide: bool) -> list[str]:
    value = result_value(operator, "sums[r][c]", "i", "j", tiling.parts)
    loops = [
        result_place(operator, tiling.parts),
        "#pragma unroll",
        "for (int r = 0; r < ROWS; ++r) {",
        "    const long long i = i0 + row + r / CHUNK_M * STRIDE_M + r % CHUNK_M;",
        "    if (i >= K_M) continue;",
    ]
    if wide and operator.n % 4 == 0 and (tiling.parts > 1 or (operator.bias is None and operator.alpha == 1)):
        inner = [
            "#pragma unroll",
            "for (int c = 0; c < COLS; c += 4) {",
            "    const long long j = j0 + col + c / CHUNK_N * STRIDE_N;",
            "    const Four four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};",
            "    if (j < K_N) *reinterpret_cast<Four*>(to + i * K_N + j) = four;",
            "}",
        ]
    else:
        inner = [
            "#pragma unroll",
            "for (int c = 0; c < COLS; ++c) {",
            "    const long long j = j0 + col + c / CHUNK_N * STRIDE_N + c % CHUNK_N;",
            f"    if (j < K_N) to[i * K_N + j] = {value};",
            "}",
        ]
    return [*loops, *indented(inner), "}"]
