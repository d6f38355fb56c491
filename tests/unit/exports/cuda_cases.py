"""Winners for ``cuda``: the kernels that the GPU tests prove, and one that uses everything a plan can say."""

from __future__ import annotations

from cupilot.domain.kernel import Kernel, Launch, Workspace
from cupilot.exports import Winner
from tests.gpu import kernels, tma_kernels
from tests.unit.exports.winners import source, winner

SOFTMAX = source("return torch.softmax(x, dim=1)", "torch.randn(64, 4096)")
NORM = source("return self.norm(x)", "torch.randn(64, 4096)", "self.norm = nn.LayerNorm(4096)")
GELU = source("return torch.nn.functional.gelu(x)", "torch.randn(64, 4096)")
ROW_SUM = source("return torch.sum(x, dim=1)", "torch.randn(1024, 2048)")

TILES = source("return torch.nn.functional.gelu(x)", "torch.randn(129, 204)")

EVERYTHING = source("return torch.max(x, dim=1).values, torch.sum(x, dim=1)", "torch.randn(256, 16384)")

_EVERYTHING = """#include <cooperative_groups.h>
#include <cfloat>
namespace cg = cooperative_groups;
// A whole row lies in dynamic shared memory (64 KiB); "partial" holds both results between the launches.
__global__ void __launch_bounds__(BLOCK) reduce_rows(const float* x, float2* partial) {
    extern __shared__ float row[];
    auto cluster = cg::this_cluster();
    if (cluster.num_blocks() != CLUSTER) return;
    for (int i = threadIdx.x; i < X_COLS; i += BLOCK) row[i] = x[blockIdx.x * X_COLS + i];
    __syncthreads();
    if (threadIdx.x == 0) {
        float top = -FLT_MAX, sum = 0.0f;
        for (int i = 0; i < X_COLS; ++i) { top = fmaxf(top, row[i]); sum += row[i]; }
        partial[blockIdx.x] = make_float2(top, sum);
    }
    cluster.sync();
}
extern "C" __global__ void write_out(const float2* partial, float* top, float* sum) {
    cg::this_grid().sync();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < X_ROWS) { top[i] = partial[i].x; sum[i] = partial[i].y; }
}
"""


def everything() -> Kernel:
    """Two launches, workspace, expressions, tunables, 64 KiB of shared memory, a cluster, a cooperative launch."""
    return kernels.kernel(
        _EVERYTHING,
        Launch(
            kernel="reduce_rows", args=("x", "partial"), grid=("X_ROWS",), block=("BLOCK",),
            shared_bytes="X_COLS * 4", cluster=("CLUSTER",),
        ),
        Launch(
            kernel="write_out", args=("partial", "out0", "out1"), grid=("ceil_div(X_ROWS, BLOCK)",), block=("BLOCK",),
            cooperative=True,
        ),
        workspace=(Workspace(name="partial", bytes="X_ROWS * 8"),),
        BLOCK=128,
        CLUSTER=2,
    )  # fmt: skip


CUDA_CASES = {
    "softmax": (SOFTMAX, kernels.softmax),
    "layer norm": (NORM, kernels.layer_norm),
    "gelu": (GELU, kernels.gelu),
    "row sum": (ROW_SUM, kernels.row_sum),
    "tensor maps": (TILES, tma_kernels.gelu),
    "everything": (EVERYTHING, everything),
}


def cuda_winner(name: str) -> Winner:
    """One of them."""
    text, make = CUDA_CASES[name]
    return winner(name, text, make())
