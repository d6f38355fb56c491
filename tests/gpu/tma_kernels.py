"""Kernels that copy tiles by tensor maps (TMA, sm_90 and newer): honest ones, and the same with a false map."""

from __future__ import annotations

from typing import Any

from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.problem import Target
from cupilot.domain.tensor_map import Swizzle, TensorMap
from tests.gpu.kernels import REDUCE

_COPIES = """#include <cuda.h>
#include "problem.h"
using Barrier = unsigned long long;
__device__ unsigned at(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }
__device__ void init(Barrier& barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect(Barrier& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&barrier)), "r"(bytes) : "memory");
}
__device__ void wait(Barrier& barrier, unsigned phase) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at(&barrier)), "r"(phase) : "memory");
}
__device__ void load_2d(void* to, const CUtensorMap& map, int x, int y, Barrier& barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(&barrier)) : "memory");
}
__device__ void load_3d(void* to, const CUtensorMap& map, int x, int y, int z, Barrier& barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(at(&barrier)) : "memory");
}
// Before a store every thread makes its writes to shared memory visible to the copy engine.
__device__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads(); }
__device__ void store_2d(const CUtensorMap& map, int x, int y, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(at(from)) : "memory");
}
__device__ void store_3d(const CUtensorMap& map, int x, int y, int z, const void* from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(at(from)) : "memory");
}
__device__ void finish_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""

_SOFTMAX = (
    _COPIES
    + REDUCE
    + """
constexpr int COLS = X_COLS;
// A row is one box of X_COLS / PIECE lines of PIECE elements, and lies in shared memory as in global memory.
extern "C" __global__ void __launch_bounds__(BLOCK) softmax(
    const __grid_constant__ CUtensorMap x_rows, const __grid_constant__ CUtensorMap out_rows) {
    alignas(128) __shared__ float row[COLS];
    __shared__ Barrier loaded;
    if (threadIdx.x == 0) {
        init(loaded);
        expect(loaded, sizeof(row));
        load_3d(row, x_rows, 0, 0, blockIdx.x, loaded);
    }
    __syncthreads();
    wait(loaded, 0);
    float top = -INFINITY;
    for (int i = threadIdx.x; i < COLS; i += BLOCK) top = fmaxf(top, row[i]);
    top = block_reduce(top, [](float a, float b) { return fmaxf(a, b); }, -INFINITY);
    float total = 0.0f;
    for (int i = threadIdx.x; i < COLS; i += BLOCK) total += row[i] = expf(row[i] - top);
    total = block_reduce(total, [](float a, float b) { return a + b; }, 0.0f);
    float scale = 1.0f / total;
    for (int i = threadIdx.x; i < COLS; i += BLOCK) row[i] *= scale;
    publish();
    if (threadIdx.x == 0) {
        store_3d(out_rows, 0, 0, blockIdx.x, row);
        finish_stores();
    }
}
"""
)

_STORE = "store_3d(out_rows, 0, 0, blockIdx.x, row);"
FORGED = (
    _STORE,
    _STORE
    + """
        static __device__ CUtensorMap forged;
        if (blockIdx.x == 0) {
            forged = out_rows;
            unsigned long long where = __cvta_generic_to_global(&forged);
            asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 2, %1;"
                         ::"l"(where), "r"((int)X_ROWS + 1) : "memory");
            asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
            asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(where) : "memory");
            store_3d(forged, 0, 0, X_ROWS, row);
        }""",
)
"""An edit of :func:`softmax`: a store past the output, by a map that the plan does not know."""

_GELU = (
    _COPIES
    + """
constexpr unsigned TILE_BYTES = TILE_COLS * TILE_ROWS * 4;
__device__ float gelu_of(float v) { return 0.5f * v * (1.0f + erff(v * (float)M_SQRT1_2)); }
// Tiles at the edges are filled with zeros when they are loaded, and cut when they are stored.
extern "C" __global__ void __launch_bounds__(BLOCK) gelu(
    const __grid_constant__ CUtensorMap x_tiles, const __grid_constant__ CUtensorMap out_tiles) {
    alignas(1024) __shared__ float tile[TILE_ROWS * TILE_COLS];
    __shared__ Barrier loaded;
    int x = blockIdx.x * TILE_COLS, y = blockIdx.y * TILE_ROWS;
    if (threadIdx.x == 0) {
        init(loaded);
        expect(loaded, TILE_BYTES);
        load_2d(tile, x_tiles, x, y, loaded);
    }
    __syncthreads();
    wait(loaded, 0);
    for (int i = threadIdx.x; i < TILE_ROWS * TILE_COLS; i += BLOCK) tile[i] = gelu_of(tile[i]);
    publish();
    if (threadIdx.x == 0) {
        store_2d(out_tiles, x, y, tile);
        finish_stores();
    }
}
"""
)


def _kernel(source: str, launch: Launch, maps: tuple[TensorMap, ...], tunables: dict[str, Tunable]) -> Kernel:
    plan = LaunchPlan(launches=(launch,), tunables=tunables, tensor_maps=maps)
    return Kernel(target=Target.CUDA, source=source, plan=plan)


def _tunable(value: int, *others: int) -> Tunable:
    return Tunable(value=value, choices=(value, *others))


def _rows(tensor: str, changes: dict[str, Any] | None) -> TensorMap:
    """A row of a matrix as one box: lines of PIECE elements, since no side of a box is longer than 256."""
    cols, stride = f"{tensor.upper()}_COLS", f"{tensor.upper()}_STRIDE0"
    told = {
        "name": f"{tensor}_rows",
        "tensor": tensor,
        "dims": ("PIECE", f"{cols} / PIECE", f"{tensor.upper()}_ROWS"),
        "strides": ("PIECE", stride),
        "box": ("PIECE", f"{cols} / PIECE", "1"),
    }
    return TensorMap.model_validate({**told, **(changes or {})})


def softmax(
    given: dict[str, Any] | None = None, result: dict[str, Any] | None = None, edit: tuple[str, str] = ("", "")
) -> Kernel:
    """A row a block, loaded and stored by one copy each; ``given`` and ``result`` change the two maps."""
    launch = Launch(kernel="softmax", args=("x_rows", "out_rows"), grid=("X_ROWS",), block=("BLOCK",))
    maps = (_rows("x", given), _rows("out", result))
    source = _SOFTMAX.replace(*edit) if edit[0] else _SOFTMAX
    assert edit == ("", "") or source != _SOFTMAX, edit
    return _kernel(source, launch, maps, {"BLOCK": _tunable(256), "PIECE": _tunable(256, 128)})


def gelu(cols: int = 32, swizzle: Swizzle = Swizzle.NONE) -> Kernel:
    """Tiles of a matrix whose sides no tile divides; its element-wise work does not mind swizzled tiles."""
    maps = tuple(
        TensorMap(name=f"{tensor}_tiles", tensor=tensor, box=("TILE_COLS", "TILE_ROWS"), swizzle=swizzle)
        for tensor in ("x", "out")
    )
    grid = ("ceil_div(X_COLS, TILE_COLS)", "ceil_div(X_ROWS, TILE_ROWS)")
    launch = Launch(kernel="gelu", args=("x_tiles", "out_tiles"), grid=grid, block=("BLOCK",))
    tunables = {"BLOCK": _tunable(256), "TILE_COLS": _tunable(cols), "TILE_ROWS": _tunable(64, 32)}
    return _kernel(_GELU, launch, maps, tunables)
