"""Scans, losses, batch norm, attention and triangular products as CUDA kernels: what the playbook has no template for.

Written for the built-in problems of these names, whose operators they know; shapes come from the problem's header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable, Workspace
from cupilot.domain.problem import Target

_BLOCKS = (256, 512, 128, 1024)

_REDUCE = """
struct Max { static __device__ float of(float a, float b) { return fmaxf(a, b); } };
struct Sum { static __device__ float of(float a, float b) { return a + b; } };
template <typename Op> __device__ float block_reduce(float value, float identity) {
    __shared__ float parts[32];
    for (int offset = 16; offset > 0; offset /= 2) value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < BLOCK / 32 ? parts[threadIdx.x % 32] : identity;
    for (int offset = 16; offset > 0; offset /= 2) value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}
"""

_SCAN = """
constexpr float IDENTITY = %(identity)s;
static __device__ float join(float a, float b) { return a %(sign)s b; }
extern "C" __global__ void __launch_bounds__(BLOCK) scan(%(parameters)sfloat* out) {
    __shared__ float totals[32];
    long long row = (long long)blockIdx.x * X_COLS;
    int lane = threadIdx.x %% 32, warp = threadIdx.x / 32;
    float carry = IDENTITY;
    for (long long start = 0; start < X_COLS; start += BLOCK * ITEMS) {
        float v[ITEMS];
        float total = IDENTITY;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            long long at = start + threadIdx.x * ITEMS + i;
            v[i] = %(load)s;
            total = join(total, v[i]);
        }
        float inclusive = total;
        for (int offset = 1; offset < 32; offset *= 2) {
            float before = __shfl_up_sync(0xffffffffu, inclusive, offset);
            if (lane >= offset) inclusive = join(before, inclusive);
        }
        __syncthreads();
        if (lane == 31) totals[warp] = inclusive;
        __syncthreads();
        float prefix = carry;
        for (int i = 0; i < BLOCK / 32; ++i) {
            if (i < warp) prefix = join(prefix, totals[i]);
            carry = join(carry, totals[i]);
        }
        float before = __shfl_up_sync(0xffffffffu, inclusive, 1);
        if (lane > 0) prefix = join(prefix, before);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            long long at = start + threadIdx.x * ITEMS + i;
            prefix = join(prefix, v[i]);
            if (at < X_COLS) out[row + %(place)s] = prefix;
        }
    }
}
"""

_FINISH = """
extern "C" __global__ void __launch_bounds__(BLOCK) finish(const float* partial, float* out) {
    float total = 0.0f;
    for (int i = threadIdx.x; i < ROWS; i += BLOCK) total += partial[i];
    total = block_reduce<Sum>(total, 0.0f);
    if (threadIdx.x == 0) out[0] = total / ROWS;
}
"""

_CROSS_ENTROPY = (
    _REDUCE
    + """
constexpr int ROWS = PREDICTIONS_ROWS;
extern "C" __global__ void __launch_bounds__(BLOCK) rows(
    const float* predictions, const long long* targets, float* partial) {
    const float* row = predictions + (long long)blockIdx.x * PREDICTIONS_COLS;
    float top = -INFINITY;
    for (int c = threadIdx.x; c < PREDICTIONS_COLS; c += BLOCK) top = fmaxf(top, row[c]);
    top = block_reduce<Max>(top, -INFINITY);
    float total = 0.0f;
    for (int c = threadIdx.x; c < PREDICTIONS_COLS; c += BLOCK) total += expf(row[c] - top);
    total = block_reduce<Sum>(total, 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.x] = logf(total) - (row[targets[blockIdx.x]] - top);
}
"""
    + _FINISH
)

_TRIPLET = (
    _REDUCE
    + """
constexpr int ROWS = ANCHOR_ROWS;
extern "C" __global__ void __launch_bounds__(BLOCK) rows(
    const float* anchor, const float* positive, const float* negative, float* partial) {
    long long row = (long long)blockIdx.x * ANCHOR_COLS;
    float near = 0.0f, far = 0.0f;
    for (int c = threadIdx.x; c < ANCHOR_COLS; c += BLOCK) {
        float a = anchor[row + c];
        float p = a - positive[row + c] + 1e-6f, n = a - negative[row + c] + 1e-6f;
        near += p * p;
        far += n * n;
    }
    near = block_reduce<Sum>(near, 0.0f);
    far = block_reduce<Sum>(far, 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.x] = fmaxf(sqrtf(near) + 1.0f - sqrtf(far), 0.0f);
}
"""
    + _FINISH
)

_BATCH_NORM = (
    _REDUCE
    + """
constexpr long long PLANE = X_DIM2 * X_DIM3, COUNT = X_DIM0 * PLANE;
constexpr long long SHARE = (COUNT + PARTS - 1) / PARTS;
static __device__ long long address(long long i) {
    return (i / PLANE * X_DIM1 + blockIdx.y) * PLANE + i % PLANE;
}
static __device__ float gathered(const float* partial) {
    float total = 0.0f;
    for (int i = threadIdx.x; i < PARTS; i += BLOCK) total += partial[blockIdx.y * PARTS + i];
    return block_reduce<Sum>(total, 0.0f) / COUNT;
}
extern "C" __global__ void __launch_bounds__(BLOCK) sums(const float* x, float* partial) {
    long long end = min((blockIdx.x + 1) * SHARE, COUNT);
    float total = 0.0f;
    for (long long i = blockIdx.x * SHARE + threadIdx.x; i < end; i += BLOCK) total += x[address(i)];
    total = block_reduce<Sum>(total, 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.y * PARTS + blockIdx.x] = total;
}
extern "C" __global__ void __launch_bounds__(BLOCK) squares(const float* x, const float* partial, float* square) {
    float mean = gathered(partial);
    long long end = min((blockIdx.x + 1) * SHARE, COUNT);
    float total = 0.0f;
    for (long long i = blockIdx.x * SHARE + threadIdx.x; i < end; i += BLOCK) {
        float distance = x[address(i)] - mean;
        total += distance * distance;
    }
    total = block_reduce<Sum>(total, 0.0f);
    if (threadIdx.x == 0) square[blockIdx.y * PARTS + blockIdx.x] = total;
}
extern "C" __global__ void __launch_bounds__(BLOCK) normalise(
    const float* x, const float* weight, const float* bias, const float* partial, const float* square, float* out) {
    float mean = gathered(partial);
    float scale = weight[blockIdx.y] / sqrtf(gathered(square) + 1e-5f), shift = bias[blockIdx.y];
    long long end = min((blockIdx.x + 1) * SHARE, COUNT);
    for (long long i = blockIdx.x * SHARE + threadIdx.x; i < end; i += BLOCK)
        out[address(i)] = (x[address(i)] - mean) * scale + shift;
}
"""
)

_ATTENTION = (
    _REDUCE
    + """
constexpr int LENGTH = Q_DIM2, DIM = Q_DIM3;
extern "C" __global__ void __launch_bounds__(BLOCK) attend(
    const float* q, const float* k, const float* v, float* out) {
    __shared__ float query[DIM];
    __shared__ float score[LENGTH];
    long long head = blockIdx.y * (long long)LENGTH * DIM, row = head + blockIdx.x * (long long)DIM;
    for (int d = threadIdx.x; d < DIM; d += BLOCK) query[d] = q[row + d] * (1.0f / sqrtf((float)DIM));
    __syncthreads();
    for (int j = threadIdx.x / 32; j < LENGTH; j += BLOCK / 32) {
        float dot = 0.0f;
        for (int d = threadIdx.x % 32; d < DIM; d += 32) dot += query[d] * k[head + (long long)j * DIM + d];
        for (int offset = 16; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
        if (threadIdx.x % 32 == 0) score[j] = dot;
    }
    __syncthreads();
    float top = -INFINITY;
    for (int j = threadIdx.x; j < LENGTH; j += BLOCK) top = fmaxf(top, score[j]);
    top = block_reduce<Max>(top, -INFINITY);
    float total = 0.0f;
    for (int j = threadIdx.x; j < LENGTH; j += BLOCK) {
        score[j] = expf(score[j] - top);
        total += score[j];
    }
    total = block_reduce<Sum>(total, 0.0f);
    __syncthreads();
    for (int d = threadIdx.x; d < DIM; d += BLOCK) {
        float sum = 0.0f;
        for (int j = 0; j < LENGTH; ++j) sum += score[j] * v[head + (long long)j * DIM + d];
        // the reference's layout: PyTorch's attention on a GPU puts the heads of a query side by side
        out[blockIdx.y / Q_DIM1 * OUT_STRIDE0 + blockIdx.y % Q_DIM1 * OUT_STRIDE1 + blockIdx.x * OUT_STRIDE2
            + d * OUT_STRIDE3] = sum / total;
    }
}
"""
)

_TRIANGULAR = """
constexpr int N = A_ROWS;
extern "C" __global__ void __launch_bounds__(TILE * TILE) multiply(const float* a, const float* b, float* out) {
    __shared__ float left[TILE][TILE];
    __shared__ float right[TILE][TILE + 1];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    int low = min(blockIdx.x, blockIdx.y), high = max(blockIdx.x, blockIdx.y);
    if (%(inside)s) {
        for (int tile = low; tile <= high; ++tile) {
            left[y][x] = a[(long long)row * N + tile * TILE + x];
            right[y][x] = b[(long long)(tile * TILE + y) * N + col];
            __syncthreads();
#pragma unroll
            for (int k = 0; k < TILE; ++k) sum += left[y][k] * right[k][x];
            __syncthreads();
        }
    }
    out[(long long)row * N + col] = %(keep)s ? sum : 0.0f;
}
"""


def kernels(name: str, count: int) -> Iterator[tuple[str, Kernel]]:
    """Return named kernels for the built-in problem of this name; none if nothing is written for it."""
    if name in _WRITERS:
        for _, (words, kernel) in zip(range(count), _WRITERS[name](), strict=False):
            yield words, kernel


def _scan(load: str, place: str = "at", *, product: bool = False, mask: bool = False) -> Iterator[tuple[str, Kernel]]:
    parts = {
        "identity": "1.0f" if product else "0.0f",
        "sign": "*" if product else "+",
        "parameters": "const float* x, " + ("const unsigned char* mask, " if mask else ""),
        "load": load,
        "place": place,
    }
    args = ("x", "mask", "out") if mask else ("x", "out")
    for items in (4, 8, 1, 2):
        for block in _BLOCKS[:3]:
            launch = Launch(kernel="scan", grid=("X_ROWS",), block=("BLOCK",), args=args)
            kernel = _kernel(_SCAN % parts, (launch,), BLOCK=block, ITEMS=items)
            yield f"scan, {items} items a thread, blocks of {block}", kernel


def _loss(source: str, rows: str, *args: str) -> Iterator[tuple[str, Kernel]]:
    for block in _BLOCKS:
        launches = (
            Launch(kernel="rows", grid=(rows,), block=("BLOCK",), args=(*args, "partial")),
            Launch(kernel="finish", grid=("1",), block=("BLOCK",), args=("partial", "out")),
        )
        workspace = (Workspace(name="partial", bytes=f"{rows} * 4"),)
        yield f"block a row, then one block, of {block}", _kernel(source, launches, workspace, BLOCK=block)


def _batch_norm() -> Iterator[tuple[str, Kernel]]:
    grid = ("PARTS", "X_DIM1")
    launches = (
        Launch(kernel="sums", grid=grid, block=("BLOCK",), args=("x", "partial")),
        Launch(kernel="squares", grid=grid, block=("BLOCK",), args=("x", "partial", "square")),
        Launch(kernel="normalise", grid=grid, block=("BLOCK",),
               args=("x", "bn_weight", "bn_bias", "partial", "square", "out")),
    )  # fmt: skip
    workspace = tuple(Workspace(name=name, bytes="X_DIM1 * PARTS * 4") for name in ("partial", "square"))
    for parts in (64, 32, 128):
        for block in _BLOCKS[:3]:
            kernel = _kernel(_BATCH_NORM, launches, workspace, BLOCK=block, PARTS=parts)
            yield f"mean, variance, result; {parts} parts, blocks of {block}", kernel


def _attention() -> Iterator[tuple[str, Kernel]]:
    launch = Launch(kernel="attend", grid=("Q_DIM2", "Q_DIM0 * Q_DIM1"), block=("BLOCK",), args=("q", "k", "v", "out"))
    for block in _BLOCKS:
        yield f"block a query, of {block}", _kernel(_ATTENTION, (launch,), BLOCK=block)


def _triangular(*, lower: bool) -> Iterator[tuple[str, Kernel]]:
    first, second = ("blockIdx.x", "blockIdx.y") if lower else ("blockIdx.y", "blockIdx.x")
    small, large = ("col", "row") if lower else ("row", "col")
    source = _TRIANGULAR % {"inside": f"{first} <= {second}", "keep": f"{small} <= {large}"}
    launch = Launch(kernel="multiply", grid=("A_ROWS / TILE", "A_ROWS / TILE"), block=("TILE", "TILE"),
                    args=("a", "b", "out"))  # fmt: skip
    for tile in (32, 16):
        yield f"tiles of {tile} within the triangle", _kernel(source, (launch,), TILE=tile)


def _kernel(
    source: str, launches: tuple[Launch, ...], workspace: tuple[Workspace, ...] = (), **tunables: int
) -> Kernel:
    values = {name: Tunable(value=value, choices=(value,)) for name, value in tunables.items()}
    plan = LaunchPlan(launches=launches, tunables=values, workspace=workspace)
    return Kernel(target=Target.CUDA, source=f'#include "problem.h"\n{source}', plan=plan)


_WITHIN = "at < X_COLS ? x[row + at] : IDENTITY"
_BACK = "(X_COLS - 1 - at)"

_WRITERS: dict[str, Callable[[], Iterator[tuple[str, Kernel]]]] = {
    "attention": _attention,
    "batch_norm": _batch_norm,
    "cross_entropy_loss": lambda: _loss(_CROSS_ENTROPY, "PREDICTIONS_ROWS", "predictions", "targets"),
    "cumprod": lambda: _scan(_WITHIN, product=True),
    "cumsum": lambda: _scan(_WITHIN),
    "cumsum_exclusive": lambda: _scan("at > 0 && at < X_COLS ? x[row + at - 1] : IDENTITY"),
    "cumsum_reverse": lambda: _scan(f"at < X_COLS ? x[row + {_BACK}] : IDENTITY", _BACK),
    "masked_cumsum": lambda: _scan("at < X_COLS && mask[row + at] ? x[row + at] : IDENTITY", mask=True),
    "matmul_lower_triangular": lambda: _triangular(lower=True),
    "matmul_upper_triangular": lambda: _triangular(lower=False),
    "triplet_margin_loss": lambda: _loss(_TRIPLET, "ANCHOR_ROWS", "anchor", "positive", "negative"),
}
