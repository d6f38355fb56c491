"""Tiled CUDA matrix products on tensor cores, through ``wmma``: tf32, fp16 or bf16 operands, float32 sums."""

from __future__ import annotations

from agents.playbook.operators import Matmul
from agents.playbook.templates.cuda_math import bounds
from agents.playbook.templates.cuda_matmul_copies import (
    ASYNC,
    TileCopy,
    contiguous_axis,
    fetching,
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

_TYPES = {
    "tf32": ("float", "wmma::precision::tf32", 8, "wmma::__float_to_tf32(value)"),
    "half": ("__half", "__half", 16, "__float2half_rn(value)"),
    "bfloat16": ("__nv_bfloat16", "__nv_bfloat16", 16, "__float2bfloat16_rn(value)"),
}
"""For each precision: type in shared memory, type of a fragment, depth of a fragment, conversion."""
_HEADERS = {"tf32": "", "half": "#include <cuda_fp16.h>", "bfloat16": "#include <cuda_bf16.h>"}


def element_bytes(options: Options) -> int:
    """Return the bytes of an operand's element in shared memory."""
    return 4 if options.text("tensor_cores", "precision", "tf32") == "tf32" else 2


def add_kernel(source: Source, operator: Matmul, options: Options, tiling: Tiling) -> int:
    """Add the kernel ``multiply``; bytes of dynamic shared memory that a block needs."""
    precision = options.text("tensor_cores", "precision", "tf32")
    stored, fragment, depth, convert = _TYPES[precision]
    axis_a = contiguous_axis(operator.a, depth_is_row=False)
    axis_b = contiguous_axis(operator.b, depth_is_row=True)
    by_depth_a, by_depth_b = axis_a != "line", axis_b == "depth"
    source.add(f"#include <mma.h>\n{_HEADERS[precision]}\nusing namespace nvcuda;".replace("\n\n", "\n"))
    place = [*add_place(source, operator, tiling), *operand_pointers(operator)]
    source.add(COPIED, PAD=tiling.pad)
    source.add(
        """
        constexpr int WARP_M = $ROWS, WARP_N = $COLS, DEPTH = $DEPTH;  // tensor_cores: the rectangle of one warp
        constexpr int PITCH_A = $PITCH_A + PAD, PITCH_B = $PITCH_B + PAD;  // bank_padding
        constexpr int SIZE_A = $LINES_A * PITCH_A, SIZE_B = $LINES_B * PITCH_B;
        typedef $STORED Stored;
        typedef wmma::fragment<wmma::matrix_a, 16, 16, DEPTH, $FRAGMENT, wmma::$MAJOR_A> FragmentA;
        typedef wmma::fragment<wmma::matrix_b, 16, 16, DEPTH, $FRAGMENT, wmma::$MAJOR_B> FragmentB;
        typedef wmma::fragment<wmma::accumulator, 16, 16, DEPTH, float> Result;
        struct alignas(16) Four { float v[4]; };
        struct alignas(4 * sizeof(Stored)) FourStored { Stored v[4]; };
        __device__ __forceinline__ Stored stored(float value) { return $CONVERT; }
        """,
        ROWS=tiling.rows,
        COLS=tiling.cols,
        DEPTH=depth,
        PITCH_A="TILE_K" if by_depth_a else "TILE_M",
        PITCH_B="TILE_K" if by_depth_b else "TILE_N",
        LINES_A="TILE_M" if by_depth_a else "TILE_K",
        LINES_B="TILE_N" if by_depth_b else "TILE_K",
        STORED=stored,
        FRAGMENT=fragment,
        MAJOR_A="row_major" if by_depth_a else "col_major",
        MAJOR_B="col_major" if by_depth_b else "row_major",
        CONVERT=convert,
    )
    asynchronous = "async_copy" in options
    if asynchronous:
        source.add(ASYNC)
    body = [
        *place,
        "extern __shared__ __align__(128) unsigned char memory[];",
        "Stored* const tiles_a = reinterpret_cast<Stored*>(memory);",
        "Stored* const tiles_b = tiles_a + STAGES * SIZE_A;",
        "const int warp = threadIdx.x / 32;",
        "const int row = warp / (TILE_N / WARP_N) * WARP_M, col = warp % (TILE_N / WARP_N) * WARP_N;",
        "Result sums[WARP_M / 16][WARP_N / 16];",
        "#pragma unroll",
        "for (int r = 0; r < WARP_M / 16; ++r)",
        "    #pragma unroll",
        "    for (int c = 0; c < WARP_N / 16; ++c) wmma::fill_fragment(sums[r][c], 0.0f);",
    ]
    tiles = [
        _tile(operator, tiling, "a", by_depth=by_depth_a),
        _tile(operator, tiling, "b", by_depth=by_depth_b),
    ]
    body += starting(tiles) if asynchronous else fetching(tiles)
    body += _compute(by_depth_a=by_depth_a, by_depth_b=by_depth_b, rounding=asynchronous)
    body += pipeline(tiling.stages, asynchronous=asynchronous, double="double_buffering" in options)
    body += _epilogue(operator, tiling)
    source.add(
        """
        extern "C" __global__ void $BOUNDS multiply($ARGUMENTS) {
            $BODY
        }
        """,
        BOUNDS=bounds(options, "THREADS"),
        ARGUMENTS=arguments(input_names(operator), [("float", operator.output if tiling.parts == 1 else "parts")]),
        BODY=body,
    )
    return shared_bytes(operator, options, tiling)


def shared_bytes(operator: Matmul, options: Options, tiling: Tiling) -> int:
    """Return the shared memory of a block.

    Its operands' tiles, and in the end one fragment of the result for each warp.
    """
    by_depth_a = contiguous_axis(operator.a, depth_is_row=False) != "line"
    by_depth_b = contiguous_axis(operator.b, depth_is_row=True) == "depth"
    size_a = tiling.m * (tiling.k + tiling.pad) if by_depth_a else tiling.k * (tiling.m + tiling.pad)
    size_b = tiling.n * (tiling.k + tiling.pad) if by_depth_b else tiling.k * (tiling.n + tiling.pad)
    operands = tiling.stages * (size_a + size_b) * element_bytes(options)
    return max(operands, tiling.threads // 32 * 16 * 16 * 4)


def _tile(operator: Matmul, tiling: Tiling, name: str, *, by_depth: bool) -> TileCopy:
    """Return one operand's tile, in the order that the operand has in memory; each value is rounded on its way."""
    item, size, lines = (operator.a, operator.m, tiling.m) if name == "a" else (operator.b, operator.n, tiling.n)
    upper = name.upper()
    within = f"line * PITCH_{upper} + depth" if by_depth else f"depth * PITCH_{upper} + line"
    return TileCopy(
        name=name,
        item=item,
        axis="depth" if by_depth else "line",
        width=4 if packs_aligned(item, size, operator.k, depth_is_row=name == "b") else 1,
        lines=lines,
        depth=tiling.k,
        size=size,
        reach=operator.k,
        threads=tiling.threads,
        place=f"buffer * SIZE_{upper} + {within}",
        stored="stored",
    )


def _compute(*, by_depth_a: bool, by_depth_b: bool, rounding: bool) -> list[str]:
    at_a = "(row + r * 16) * PITCH_A + k" if by_depth_a else "k * PITCH_A + row + r * 16"
    at_b = "(col + c * 16) * PITCH_B + k" if by_depth_b else "k * PITCH_B + col + c * 16"
    """The lambda that multiplies one pair of tiles; operands that no thread has touched are rounded here."""
    loop = "for (int e = 0; e < $F.num_elements; ++e) $F.x[e] = wmma::__float_to_tf32($F.x[e]);"
    text = """
    auto compute = [&](int buffer, int first, int end) {
        #pragma unroll
        for (int k = first; k < end; k += DEPTH) {
            FragmentA part_a[WARP_M / 16];
            FragmentB part_b[WARP_N / 16];
            #pragma unroll
            for (int r = 0; r < WARP_M / 16; ++r) {
                wmma::load_matrix_sync(part_a[r], tiles_a + buffer * SIZE_A + $AT_A, PITCH_A);
                $ROUND_A
            }
            #pragma unroll
            for (int c = 0; c < WARP_N / 16; ++c) {
                wmma::load_matrix_sync(part_b[c], tiles_b + buffer * SIZE_B + $AT_B, PITCH_B);
                $ROUND_B
            }
            #pragma unroll
            for (int r = 0; r < WARP_M / 16; ++r)
                #pragma unroll
                for (int c = 0; c < WARP_N / 16; ++c) wmma::mma_sync(sums[r][c], part_a[r], part_b[c], sums[r][c]);
        }
    };
    """
    rounds = {"ROUND_A": "part_a[r]", "ROUND_B": "part_b[c]"}
    filled = {name: [loop.replace("$F", target)] if rounding else [] for name, target in rounds.items()}
    return fill(text, AT_A=at_a, AT_B=at_b, **filled).split("\n")


def _epilogue(operator: Matmul, tiling: Tiling) -> list[str]:
    """Return statements that write the fragments.

    To the result directly where it consists of whole ones, else through shared memory.
    """
    lines = [result_place(operator, tiling.parts)]
    finished = result_value(operator, "sum", "i", "j", tiling.parts)
    if operator.m % 16 == 0 and operator.n % 16 == 0 and finished == "sum":
        text = """
        #pragma unroll
        for (int r = 0; r < WARP_M / 16; ++r)
            #pragma unroll
            for (int c = 0; c < WARP_N / 16; ++c) {
                const long long i = i0 + row + r * 16, j = j0 + col + c * 16;
                if (i < K_M && j < K_N) wmma::store_matrix_sync(to + i * K_N + j, sums[r][c], K_N, wmma::mem_row_major);
            }
        """
        return [*lines, *fill(text).split("\n")]
    text = """
    float* const own = reinterpret_cast<float*>(memory) + warp * 256;
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int r = 0; r < WARP_M / 16; ++r)
        #pragma unroll
        for (int c = 0; c < WARP_N / 16; ++c) {
            wmma::store_matrix_sync(own, sums[r][c], 16, wmma::mem_row_major);
            __syncwarp();
            #pragma unroll
            for (int e = 0; e < 8; ++e) {
                const long long i = i0 + row + r * 16 + e * 2 + lane / 16, j = j0 + col + c * 16 + lane % 16;
                const float sum = own[e * 32 + lane];
                if (i < K_M && j < K_N) to[i * K_N + j] = $FINISHED;
            }
            __syncwarp();
        }
    """
    return [*lines, *fill(text, FINISHED=finished).split("\n")]
