"""Kernels for the problems of :mod:`problems`: honest ones, and ones that are wrong in one way each."""

from __future__ import annotations

from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import Target


def kernel(source: str, *launches: Launch, workspace: tuple[Workspace, ...] = (), **tunables: int) -> Kernel:
    choices = {name: Tunable(value=value, choices=(value,)) for name, value in tunables.items()}
    plan = LaunchPlan(launches=launches, tunables=choices, workspace=workspace)
    return Kernel(target=Target.CUDA, source='#include "problem.h"\n' + source, plan=plan)


REDUCE = """
struct Max { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };

template <typename Op>
__device__ float block_reduce(float value, Op op, float identity) {
    __shared__ float partial[32];
    for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : identity;
    for (int offset = 16; offset > 0; offset /= 2) value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}
"""

_SOFTMAX = (
    REDUCE
    + """
constexpr int VECTORS = X_COLS / (4 * BLOCK);
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(const float* x, float* out) {
    const float4* in = reinterpret_cast<const float4*>(x + (long long)blockIdx.x * X_COLS);
    float4* result = reinterpret_cast<float4*>(out + (long long)blockIdx.x * X_COLS);
    float4 v[VECTORS];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = in[threadIdx.x + i * BLOCK];
        top = fmaxf(top, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    }
    top = block_reduce(top, Max(), -INFINITY);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = make_float4(expf(v[i].x - top), expf(v[i].y - top), expf(v[i].z - top), expf(v[i].w - top));
        total += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    total = block_reduce(total, Sum(), 0.0f);
    float scale = 1.0f / total;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        result[threadIdx.x + i * BLOCK] =
            make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
    }
}
"""
)

_ROWS = Launch(kernel="softmax", args=("x", "out"), grid=("X_ROWS",), block=("BLOCK",))


def softmax(source: str = _SOFTMAX, **changes: object) -> Kernel:
    return kernel(source, _ROWS.model_copy(update=changes), BLOCK=256)


def softmax_badly_launched() -> Kernel:
    """Rows in shared memory, one warp a row: correct, and starved of warps until BLOCK is larger."""
    source = (
        REDUCE
        + """
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(const float* x, float* out) {
    extern __shared__ float row[];
    const float* in = x + (long long)blockIdx.x * X_COLS;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < X_COLS; i += BLOCK) { row[i] = in[i]; top = fmaxf(top, row[i]); }
    top = block_reduce(top, Max(), -INFINITY);
    float total = 0.0f;
    for (int i = threadIdx.x; i < X_COLS; i += BLOCK) { row[i] = expf(row[i] - top); total += row[i]; }
    total = block_reduce(total, Sum(), 0.0f);
    float scale = 1.0f / total;
    for (int i = threadIdx.x; i < X_COLS; i += BLOCK) out[(long long)blockIdx.x * X_COLS + i] = row[i] * scale;
}
"""
    )
    plan = LaunchPlan(
        launches=(_ROWS.model_copy(update={"shared_bytes": "X_COLS * 4"}),),
        tunables={"BLOCK": Tunable(value=32, choices=(32, 64, 128, 256, 512, 1024))},
    )
    return Kernel(target=Target.CUDA, source='#include "problem.h"\n' + source, plan=plan)


def scale(cooperative: bool = False) -> Kernel:
    source = """
extern "C" __global__ void scale(const float* x, float* out) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    out[i] = x[i] * 2.0f;
}
"""
    launch = Launch(
        kernel="scale", args=("x", "out"), grid=("X_SIZE / BLOCK",), block=("BLOCK",), cooperative=cooperative
    )
    return kernel(source, launch, BLOCK=128)


def layer_norm() -> Kernel:
    source = (
        REDUCE
        + """
constexpr int VECTORS = X_COLS / (4 * BLOCK);
extern "C" __global__ void __launch_bounds__(BLOCK) layer_norm(
    const float* x, const float* weight, const float* bias, float* out) {
    const float4* in = reinterpret_cast<const float4*>(x + (long long)blockIdx.x * X_COLS);
    float4* result = reinterpret_cast<float4*>(out + (long long)blockIdx.x * X_COLS);
    float4 v[VECTORS];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = in[threadIdx.x + i * BLOCK];
        total += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    float mean = block_reduce(total, Sum(), 0.0f) / X_COLS;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
        squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    float scale = rsqrtf(block_reduce(squares, Sum(), 0.0f) / X_COLS + 1e-5f);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        float4 w = reinterpret_cast<const float4*>(weight)[threadIdx.x + i * BLOCK];
        float4 b = reinterpret_cast<const float4*>(bias)[threadIdx.x + i * BLOCK];
        result[threadIdx.x + i * BLOCK] = make_float4(
            v[i].x * scale * w.x + b.x, v[i].y * scale * w.y + b.y,
            v[i].z * scale * w.z + b.z, v[i].w * scale * w.w + b.w);
    }
}
"""
    )
    args = ("x", "norm_weight", "norm_bias", "out")
    return kernel(source, Launch(kernel="layer_norm", args=args, grid=("X_ROWS",), block=("BLOCK",)), BLOCK=256)


def gelu() -> Kernel:
    source = """
__device__ float gelu_of(float v) { return 0.5f * v * (1.0f + erff(v * (float)M_SQRT1_2)); }
extern "C" __global__ void __launch_bounds__(BLOCK) gelu(const float* x, float* out) {
    long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
    float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(out)[i] = make_float4(gelu_of(v.x), gelu_of(v.y), gelu_of(v.z), gelu_of(v.w));
}
"""
    grid = ("X_SIZE / (4 * BLOCK)",)
    return kernel(source, Launch(kernel="gelu", args=("x", "out"), grid=grid, block=("BLOCK",)), BLOCK=256)


def row_sum() -> Kernel:
    """In two launches over a workspace, to exercise both."""
    source = (
        REDUCE
        + """
constexpr int VECTORS = X_COLS / (4 * BLOCK * PARTS);
extern "C" __global__ void __launch_bounds__(BLOCK) parts(const float* x, float* partial) {
    const float* row = x + (long long)blockIdx.y * X_COLS;
    const float4* in = reinterpret_cast<const float4*>(row) + blockIdx.x * BLOCK * VECTORS;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        float4 v = in[threadIdx.x + i * BLOCK];
        total += (v.x + v.y) + (v.z + v.w);
    }
    total = block_reduce(total, Sum(), 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.y * PARTS + blockIdx.x] = total;
}
extern "C" __global__ void finish(const float* partial, float* out) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    float total = 0.0f;
    for (int i = 0; i < PARTS; ++i) total += partial[row * PARTS + i];
    out[row] = total;
}
"""
    )
    launches = (
        Launch(kernel="parts", args=("x", "partial"), grid=("PARTS", "X_ROWS"), block=("BLOCK",)),
        Launch(kernel="finish", args=("partial", "out"), grid=("X_ROWS / BLOCK",), block=("BLOCK",)),
    )
    workspace = (Workspace(name="partial", bytes="X_ROWS * PARTS * 4"),)
    return kernel(source, *launches, workspace=workspace, BLOCK=256, PARTS=2)


def matmul() -> Kernel:
    """Register-blocked: 128 x 128 of the product a block, 8 x 8 a thread."""
    source = """
constexpr int TILE = 128, DEPTH = 8, N = OUT_COLS, K = A_COLS;
extern "C" __global__ void __launch_bounds__(256) matmul(const float* a, const float* b, float* out) {
    __shared__ float sa[2][DEPTH][TILE], sb[2][DEPTH][TILE];
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE, t = threadIdx.x;
    int ar = t / 2, ac = t % 2 * 4, br = t / 32, bc = t % 32 * 4;
    int ty = t / 16 * 4, tx = t % 16 * 4;
    float acc[8][8] = {};
    auto load = [&](int buffer, float4 va, float4 vb) {
        sa[buffer][ac + 0][ar] = va.x; sa[buffer][ac + 1][ar] = va.y;
        sa[buffer][ac + 2][ar] = va.z; sa[buffer][ac + 3][ar] = va.w;
        *reinterpret_cast<float4*>(&sb[buffer][br][bc]) = vb;
    };
    auto from_a = [&](int k) { return *reinterpret_cast<const float4*>(a + (long long)(row0 + ar) * K + k + ac); };
    auto from_b = [&](int k) { return *reinterpret_cast<const float4*>(b + (long long)(k + br) * N + col0 + bc); };
    load(0, from_a(0), from_b(0));
    __syncthreads();
    for (int k = 0; k < K; k += DEPTH) {
        int now = k / DEPTH % 2;
        float4 va, vb;
        bool more = k + DEPTH < K;
        if (more) { va = from_a(k + DEPTH); vb = from_b(k + DEPTH); }
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            float fa[8], fb[8];
            *reinterpret_cast<float4*>(fa) = *reinterpret_cast<float4*>(&sa[now][d][ty]);
            *reinterpret_cast<float4*>(fa + 4) = *reinterpret_cast<float4*>(&sa[now][d][ty + 64]);
            *reinterpret_cast<float4*>(fb) = *reinterpret_cast<float4*>(&sb[now][d][tx]);
            *reinterpret_cast<float4*>(fb + 4) = *reinterpret_cast<float4*>(&sb[now][d][tx + 64]);
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] += fa[i] * fb[j];
        }
        if (more) load(1 - now, va, vb);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        long long row = row0 + ty + i % 4 + i / 4 * 64;
#pragma unroll
        for (int j = 0; j < 2; ++j)
            *reinterpret_cast<float4*>(out + row * N + col0 + tx + j * 64) =
                make_float4(acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], acc[i][4 * j + 3]);
    }
}
"""
    grid = ("OUT_COLS / 128", "OUT_ROWS / 128")
    return kernel(source, Launch(kernel="matmul", args=("a", "b", "out"), grid=grid, block=("256",)))


def matmul_tensor_cores() -> Kernel:
    """TF32 through WMMA: 64 x 64 of the product a block, 32 x 32 a warp."""
    source = """
#include <mma.h>
using namespace nvcuda;
constexpr int TILE = 64, DEPTH = 16, PITCH = 20, N = OUT_COLS, K = A_COLS;
extern "C" __global__ void __launch_bounds__(128) matmul(const float* a, const float* b, float* out) {
    __shared__ float sa[TILE][PITCH], sb[DEPTH][TILE + 8];
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE, warp = threadIdx.x / 32;
    int wr = warp / 2 * 32, wc = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> acc[2][2];
    for (auto& line : acc) for (auto& part : line) wmma::fill_fragment(part, 0.0f);
    for (int k = 0; k < K; k += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH / 4; i += 128) {
            int ar = i / 4, ac = i % 4 * 4, br = i / 16, bc = i % 16 * 4;
            float4 va = *reinterpret_cast<const float4*>(a + (long long)(row0 + ar) * K + k + ac);
            float4 vb = *reinterpret_cast<const float4*>(b + (long long)(k + br) * N + col0 + bc);
            *reinterpret_cast<float4*>(&sa[ar][ac]) = va;
            *reinterpret_cast<float4*>(&sb[br][bc]) = vb;
        }
        __syncthreads();
        for (int d = 0; d < DEPTH; d += 8) {
            wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fb[2];
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(fa[i], &sa[wr + 16 * i][d], PITCH);
                wmma::load_matrix_sync(fb[i], &sb[d][wc + 16 * i], TILE + 8);
                for (int e = 0; e < fa[i].num_elements; ++e) fa[i].x[e] = wmma::__float_to_tf32(fa[i].x[e]);
                for (int e = 0; e < fb[i].num_elements; ++e) fb[i].x[e] = wmma::__float_to_tf32(fb[i].x[e]);
            }
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 2; ++j) wmma::mma_sync(acc[i][j], fa[i], fb[j], acc[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(
                out + (long long)(row0 + wr + 16 * i) * N + col0 + wc + 16 * j, acc[i][j], N, wmma::mem_row_major);
}
"""
    grid = ("OUT_COLS / 64", "OUT_ROWS / 64")
    return kernel(source, Launch(kernel="matmul", args=("a", "b", "out"), grid=grid, block=("128",)))


def broken_softmax(body: str) -> Kernel:
    """A kernel of softmax's shape whose whole body is ``body``; ``row`` and ``t`` are at hand."""
    source = f"""
extern "C" __global__ void softmax(float* x, float* out) {{
    long long row = blockIdx.x;
    int t = threadIdx.x;
    {body}
}}
"""
    return softmax(source)


def softmax_down_the_columns() -> Kernel:
    """Each thread takes a column, which is softmax over the other axis."""
    source = """
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(const float* x, float* out) {
    long long column = (long long)blockIdx.x * BLOCK + threadIdx.x;
    float top = -INFINITY, total = 0.0f;
    for (int row = 0; row < X_ROWS; ++row) top = fmaxf(top, x[(long long)row * X_COLS + column]);
    for (int row = 0; row < X_ROWS; ++row) total += expf(x[(long long)row * X_COLS + column] - top);
    for (int row = 0; row < X_ROWS; ++row) {
        long long i = (long long)row * X_COLS + column;
        out[i] = expf(x[i] - top) / total;
    }
}
"""
    return softmax(source, grid=("X_COLS / BLOCK",))


def edited_softmax(old: str, new: str) -> Kernel:
    """The honest softmax with one change."""
    assert _SOFTMAX.count(old) == 1, old
    return softmax(_SOFTMAX.replace(old, new))


def running_sum(*, ahead: bool) -> Kernel:
    """With ``ahead``, a launch that meets new inputs sums up those of all slots, a block for each, and later ones copy:
    an honest launch's single block leaves the card idle. Where slots lie it has learned from the first launches of the
    block of launches, before which its memory is as after loading. Without ``ahead``, it only learns."""
    source = """
typedef unsigned long long Place;
constexpr int ROWS = 4, COLS = 8192, SIZE = ROWS * COLS, MOST = 512;
static __device__ Place first, low, high, apart;
static __device__ unsigned of[2 * MOST];
static __device__ float kept[2 * MOST][SIZE];
static __device__ int launches;
__device__ void sums(const float* x, float* out) {
    if (threadIdx.x >= ROWS) return;
    const float4* in = reinterpret_cast<const float4*>(x + threadIdx.x * COLS);
    float4* result = reinterpret_cast<float4*>(out + threadIdx.x * COLS);
    double total = 0.0;
#pragma unroll 8
    for (int i = 0; i < COLS / 4; ++i) {
        float4 v = in[i];
        v.x = float(total += v.x); v.y = float(total += v.y); v.z = float(total += v.z); v.w = float(total += v.w);
        result[i] = v;
    }
}
__device__ void copy(const float* from, float* to) {
    for (int i = threadIdx.x; i < SIZE / 4; i += BLOCK)
        reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
}
__device__ unsigned key(const float* x) {
    __shared__ unsigned sum;
    if (threadIdx.x < 32) {
        unsigned bits = 0;
        for (int i = 0; i < 4; ++i) bits = 31 * bits + __float_as_uint(x[(4 * threadIdx.x + i) * 256]);
        bits = __reduce_add_sync(0xffffffffu, bits * (2 * threadIdx.x + 1));
        if (threadIdx.x == 0) sum = bits;
    }
    __syncthreads();
    return sum;
}
__device__ void learn(Place x) {
    if (!first) first = low = high = x;
    low = min(low, x);
    high = max(high, x);
    for (Place other = x > first ? x - first : first - x, rest; other; other = rest) {
        rest = apart % other;
        apart = other;
    }
}
extern "C" __global__ void __launch_bounds__(BLOCK) running_sum(const float* x, float* out) {
    const float* from = x;
    if (blockIdx.x > 0) from = reinterpret_cast<const float*>(low + (blockIdx.x - 1) * apart);
    int slot = MOST + (apart ? (long long)((Place)from - first) / (long long)apart : 0);
    if (blockIdx.x > 0) {
        if (launches < LEARNT || (Place)from > high || from == x) return;
        unsigned is = key(from);
        if (of[slot] == is) return;
        sums(from, kept[slot]);
        __syncthreads();
        if (threadIdx.x == 0) of[slot] = is;
        return;
    }
    unsigned is = key(x);
    if (launches >= LEARNT && of[slot] == is) { copy(kept[slot], out); return; }
    sums(x, out);
    __syncthreads();
    if (launches >= LEARNT) copy(out, kept[slot]);
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (launches >= LEARNT) of[slot] = is; else { ++launches; learn((Place)x); }
}
"""
    source = f"constexpr int LEARNT = {4 if ahead else 1 << 30};\n{source}"
    return kernel(source, Launch(kernel="running_sum", args=("x", "out"), grid=("512",), block=("BLOCK",)), BLOCK=256)
