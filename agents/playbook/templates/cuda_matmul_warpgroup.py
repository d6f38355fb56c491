"""Tiled CUDA matrix products by warpgroup instructions (``wgmma``, sm_90a): tf32 operands, float32 sums.

One thread asks the copy engine (TMA) for tiles, which it rounds to tf32 on their way, and warpgroups multiply; barriers
in shared memory say what has come and what may be overwritten. One operand, whose depth must be contiguous, is read
from shared memory by the instruction; the other one's fragments are read into registers, in whichever order it has in
memory. Where the first operand of the product is the shared one, the transposed product is computed. Blocks of a
cluster share that operand's tile: each asks for a part of it, for all. PTX ISA 9.0, sections 9.7.15 and 9.7.9.27.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.compiler.cuda.tensor_copies import ARRIVE_ALONE, BARRIERS, CLUSTER, TENSOR_MAP, copy_function
from agents.playbook.operators import Matmul, Operand2D
from agents.playbook.templates.cuda_math import bounds
from agents.playbook.templates.cuda_matmul_copies import contiguous_axis
from agents.playbook.templates.cuda_matmul_parts import (
    Tiling,
    add_place,
    result_place,
    result_value,
    shares_first,
)
from agents.playbook.templates.source import Options, Source, arguments, fill
from cupilot.domain.tensor_map import L2Promotion, MapElement, Swizzle, TensorMap

DEPTH = 32
"""Of a tile: 128 bytes, which is what one swizzle spans."""

REGISTERS = 65536
"""Of a multiprocessor of sm_90."""

FEWER_REGISTERS = 40
"""Of a thread that copies, where it hands over what it does not need to those that multiply."""

SPARE_REGISTERS = 48
"""Of a thread that multiplies, beside its sums: fragments and addresses. With 40 of them ptxas let each product wait
for the one before (C7512)."""

_MULTIPLY = r"""
// warpgroup_mma: four warps multiply 64 lines of one operand, in registers, by SHARED lines of the other, shared one
__device__ __forceinline__ unsigned long long described(const float* rows) {  // swizzled rows of 128 bytes, by eight
    return (unsigned long long)((at(rows) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
__device__ __forceinline__ void multiply_add(float (&d)[$SUMS], const unsigned int (&r)[4], unsigned long long s) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n${LINES}k8.f32.tf32.tf32 "
        "{$PLACES}, {$R0, $R1, $R2, $R3}, $S, 1, 1, 1;"
        : $RESULTS
        : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(s));
}
"""

_BODY = """
extern __shared__ __align__(1024) float tiles_s[];  // eight swizzled rows
float* const tiles_r = tiles_s + STAGES * SIZE_S;
Barrier* const filled = reinterpret_cast<Barrier*>(tiles_r + STAGES * SIZE_R);
Barrier* const freed = filled + STAGES;
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
        init(filled + s, 1);
        init(freed + s, BLOCKS * WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
$SYNCHRONISE
if (warp >= WARPS) {
    $FEWER
    if (threadIdx.x == 32 * WARPS) {
        for (int t = 0; t < tiles; ++t) {
            const int s = t % STAGES, k = (int)(k_first + (long long)t * TILE_K);
            if (t >= STAGES) wait(freed + s, (t / STAGES - 1) & 1);
            expect(filled + s, (SIZE_S + SIZE_R) * 4);
            $COPY_S
            $COPY_R
        }
    }
} else {
    $MORE
    float sums[SUMS] = {};
    for (int t = 0; t < tiles; ++t) {
        const int s = t % STAGES;
        wait(filled + s, t / STAGES & 1);
        unsigned int part[TILE_K / 8][4];
        #pragma unroll
        for (int k = 0; k < TILE_K; k += 8) {
            #pragma unroll
            for (int v = 0; v < 4; ++v) {
                const int line = fragment_line(warp, lane, v % 2), depth = k + lane % 4 + v / 2 * 4;
                part[k / 8][v] = __float_as_uint(tiles_r[s * SIZE_R + $AT_R]);
            }
        }
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < TILE_K; k += 8) multiply_add(sums, part[k / 8], described(tiles_s + s * SIZE_S + k));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");  // meanwhile the other warpgroups multiply
        if (lane < BLOCKS) arrive(freed + s, lane);
    }
    $PLACE
    #pragma unroll
    for (int n = 0; n < SUMS; ++n) {
        const int shared = n / 4 * 8 + lane % 4 * 2 + n % 2, own = fragment_line(warp, lane, n % 4 / 2);
        const long long i = i0 + $I, j = j0 + $J;
        const float sum = sums[n];
        if ((WHOLE_M || i < K_M) && (WHOLE_N || j < K_N)) to[i * K_N + j] = $FINISHED;
    }
}
$END
"""

_LINE_BY_DEPTH = "return warp * 16 + lane / 4 + half * 8;"
_LINE_BY_LINE = "return warp / 2 * 32 + (warp % 2 * 2 + half) * 4 + lane / 4 % 4 + lane / 16 * 16;"
"""Which line of a tile a thread's fragment holds: any order will do, these read swizzled packs without conflicts."""


@dataclass(frozen=True)
class _Side:
    """One operand, seen along its lines (rows of the first, columns of the second) and its depth."""

    item: Operand2D
    lines: int
    """Of the whole operand."""
    tile: int
    """Lines of a block's tile."""
    stride: int
    """Elements from one line to the next."""
    depth_stride: int
    origin: str
    """First line of the block's tile, as C++ text."""

    @property
    def by_depth(self) -> bool:
        """True if neighbours in depth are neighbours in memory; else neighbouring lines are."""
        return self.depth_stride == 1

    @property
    def rank(self) -> int:
        """Dimensions of its tensor map: a third one where each batch has its own matrix."""
        return 3 if self.item.batch else 2

    def tensor_map(self, name: str, depth: int, batches: int, box: int) -> TensorMap:
        """Return a map with boxes of ``box`` lines, or of 32 lines where these are contiguous; 32 deep."""
        if self.by_depth:
            sizes, boxes, strides = [depth, self.lines], [DEPTH, box], [self.stride]
        else:
            sizes, boxes, strides = [self.lines, depth], [DEPTH, DEPTH], [self.depth_stride]
        if self.item.batch:
            sizes, boxes, strides = [*sizes, batches], [*boxes, 1], [*strides, self.item.batch]
        return TensorMap(
            name=name,
            tensor=self.item.name,
            box=tuple(map(str, boxes)),
            dims=tuple(map(str, sizes)),
            strides=tuple(map(str, strides)),
            dtype=MapElement.TFLOAT32,
            swizzle=Swizzle.B128,
            l2_promotion=L2Promotion.B256,
        )


def applies(operator: Matmul) -> bool:
    """Return whether an operand's depth is contiguous, as ``wgmma`` wants it in shared memory."""
    return shares_first(operator) or contiguous_axis(operator.b, depth_is_row=True) == "depth"


def shared_lines(operator: Matmul, tiling: Tiling) -> int:
    """Return the number of lines of the shared operand's tile: what one instruction multiplies by."""
    return tiling.m if shares_first(operator) else tiling.n


def sums(operator: Matmul, tiling: Tiling) -> int:
    """Return the number of sums that a thread keeps: 64 lines by those of the shared tile, over 128 threads."""
    return shared_lines(operator, tiling) // 2


def shared_bytes(tiling: Tiling) -> int:
    """Return the shared memory of a block: tiles, and two barriers a stage."""
    return tiling.stages * ((tiling.m + tiling.n) * DEPTH * 4 + 16)


def registers(operator: Matmul, tiling: Tiling) -> int:
    """Return the most registers of a thread that multiplies; a multiple of eight.

    Where an equal share of the block's would not do, threads that copy hand over what they do not need.
    """
    equal = min(REGISTERS // tiling.threads, 255) // 8 * 8
    if equal >= sums(operator, tiling) + SPARE_REGISTERS:
        return equal
    warpgroups = tiling.threads // 128
    return (equal * warpgroups - FEWER_REGISTERS) // (warpgroups - 1) // 8 * 8


def add_kernel(source: Source, operator: Matmul, options: Options, tiling: Tiling) -> tuple[TensorMap, ...]:
    """Add the kernel ``multiply``, which is given the returned maps and then what is added and the result."""
    shared, own = _sides(operator, tiling)
    place = add_place(source, operator, tiling)
    source.add(
        """
        constexpr int BLOCKS = $BLOCKS, WARPS = THREADS / 32 - 4;
        constexpr int SIZE_S = $SHARED * TILE_K, SIZE_R = $OWN * TILE_K, SUMS = $SHARED / 2;
        __device__ __forceinline__ int fragment_line(int warp, int lane, int half) {
            $LINE
        }
        """,
        BLOCKS=tiling.cluster,
        SHARED=shared.tile,
        OWN=own.tile,
        LINE=[_LINE_BY_DEPTH if own.by_depth else _LINE_BY_LINE],
    )
    many = tiling.cluster > 1
    hands_over = registers(operator, tiling) * tiling.threads > REGISTERS
    source.add(TENSOR_MAP)
    source.add(BARRIERS)
    source.add(CLUSTER if many else ARRIVE_ALONE)
    source.add(copy_function("copy_shared", shared.rank, tiling.cluster))
    source.add(copy_function("copy_own", own.rank, 1))
    _add_multiply(source, shared.tile)
    at_r = (
        "line * TILE_K + (depth / 4 ^ line % 8) * 4 + depth % 4"
        if own.by_depth
        else "line / 32 * 32 * TILE_K + depth * 32 + (line % 32 / 4 ^ depth % 8) * 4 + line % 4"
    )
    first = shares_first(operator)
    body = fill(
        _BODY,
        FEWER=_registers("dec", FEWER_REGISTERS) if hands_over else [],
        MORE=_registers("inc", registers(operator, tiling)) if hands_over else [],
        SYNCHRONISE=["cluster_sync();" if many else "__syncthreads();"],
        COPY_S=_copy_shared(shared, tiling.cluster),
        COPY_R=_copy_own(own),
        AT_R=at_r,
        PLACE=[result_place(operator, tiling.parts)],
        I="shared" if first else "own",
        J="own" if first else "shared",
        FINISHED=result_value(operator, "sum", "i", "j", tiling.parts),
        END=["__syncwarp();", "cluster_sync();  // no block ends while others may still write to it"] if many else [],
    )
    source.add(
        """
        extern "C" __global__ void $BOUNDS multiply(
            const __grid_constant__ CUtensorMap s_tiles, const __grid_constant__ CUtensorMap r_tiles, $ARGUMENTS) {
            $BODY
        }
        """,
        BOUNDS=bounds(options, "THREADS"),
        ARGUMENTS=arguments(
            [operator.bias.name] if operator.bias and tiling.parts == 1 else [],
            [("float", operator.output if tiling.parts == 1 else "parts")],
        ),
        BODY=[*place, *body.split("\n")],
    )
    return (
        shared.tensor_map("s_tiles", operator.k, operator.batches, shared.tile // tiling.cluster),
        own.tensor_map("r_tiles", operator.k, operator.batches, own.tile),
    )


def _sides(operator: Matmul, tiling: Tiling) -> tuple[_Side, _Side]:
    a, b = operator.a, operator.b
    first = _Side(a, operator.m, tiling.m, a.row, a.col, "i0")
    second = _Side(b, operator.n, tiling.n, b.col, b.row, "j0")
    return (first, second) if shares_first(operator) else (second, first)


def _copy_shared(side: _Side, blocks: int) -> list[str]:
    """Return all of the shared operand's tile, or this block's part of it for the whole cluster."""
    batch = ", (int)batch" if side.item.batch else ""
    if blocks == 1:
        return [f"copy_shared(tiles_s + s * SIZE_S, s_tiles, k, (int){side.origin}{batch}, filled + s);"]
    return [
        f"const int part = rank * {side.tile // blocks}, line = (int){side.origin} + part;",
        f"copy_shared(tiles_s + s * SIZE_S + part * TILE_K, s_tiles, k, line{batch}, filled + s);",
    ]


def _copy_own(side: _Side) -> list[str]:
    batch = ", (int)batch" if side.item.batch else ""
    if side.by_depth:
        return [f"copy_own(tiles_r + s * SIZE_R, r_tiles, k, (int){side.origin}{batch}, filled + s);"]
    return [
        "#pragma unroll",
        f"for (int n = 0; n < {side.tile}; n += 32)",
        f"    copy_own(tiles_r + s * SIZE_R + n * TILE_K, r_tiles, (int){side.origin} + n, k{batch}, filled + s);",
    ]


def _registers(change: str, count: int) -> list[str]:
    return [f'asm volatile("setmaxnreg.{change}.sync.aligned.u32 {count};");']


def _add_multiply(source: Source, lines: int) -> None:
    count = lines // 2
    source.add(
        _MULTIPLY,
        SUMS=count,
        LINES=lines,
        PLACES=", ".join(f"%{n}" for n in range(count)),
        **{f"R{n}": f"%{count + n}" for n in range(4)},
        S=f"%{count + 4}",
        RESULTS=", ".join(f'"+f"(d[{n}])' for n in range(count)),
    )
