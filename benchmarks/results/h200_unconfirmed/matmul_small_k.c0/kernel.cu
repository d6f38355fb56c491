#include "problem.h"
#include <cuda.h>

constexpr int K = int(A_DIM1);                          // 64
constexpr int LDA = int(A_STRIDE0);
constexpr int TM = 128, TN = 128, TK = 32;              // a panel of b comes by K / TK copies
constexpr int STAGES = 2;
constexpr int TILES_N = int(B_DIM1) / TN;
constexpr int TILES = int(A_DIM0) / TM * TILES_N;
constexpr int BLOCKS = SMS * 2;
constexpr int PANEL = K * TN;                           // floats of a stage
constexpr unsigned PANEL_BYTES = PANEL * 4u;
static_assert(int(A_DIM0) % TM == 0 && int(B_DIM1) % TN == 0 && K == 64, "whole tiles");

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(unsigned bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}
__device__ __forceinline__ void tensor_load(unsigned to, const CUtensorMap* map, int column, int row, unsigned bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(bar) : "memory");
}

extern "C" __global__ void __launch_bounds__(256, 2)
product(const float* __restrict__ a, const __grid_constant__ CUtensorMap bmap, float* __restrict__ out) {
    extern __shared__ __align__(1024) float shared[];   // two panels of b [k][128], then the panel of a [k][128]
    __shared__ __align__(8) unsigned long long full[STAGES];
    __shared__ __align__(8) unsigned long long empty[STAGES];
    float* panel_a = shared + STAGES * PANEL;

    const int t = int(threadIdx.x);
    const int lane = t % 32;
    const int row0 = t / 16 * 4, col0 = t % 16 * 4;     // rows row0..+3, row0+64..+67; columns likewise

    const int first = int((long long)blockIdx.x * TILES / BLOCKS);
    const int count = int((long long)(blockIdx.x + 1) * TILES / BLOCKS) - first;

    auto load = [&](int k) {                            // by one thread: the panel of b of this block's tile k
        const int s = k % STAGES;
        const int column = (first + k) % TILES_N * TN;
        bar_expect(at(&full[s]), PANEL_BYTES);
        #pragma unroll
        for (int part = 0; part < K / TK; ++part)
            tensor_load(at(shared + s * PANEL + part * (TK * TN)), &bmap, column, part * TK, at(&full[s]));
    };

    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) {
            bar_init(at(&full[s]), 1u);
            bar_init(at(&empty[s]), 8u);                // one arrival a warp
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        for (int k = 0; k < STAGES && k < count; ++k) load(k);
    }
    __syncthreads();

    int panel = -1;
    #pragma unroll 1
    for (int k = 0; k < count; ++k) {
        const int tile_m = (first + k) / TILES_N, tile_n = (first + k) % TILES_N;
        const int s = k % STAGES;
        const unsigned parity = unsigned(k / STAGES) & 1u;

        if (tile_m != panel) {                          // the same for all threads
            panel = tile_m;
            __syncthreads();                            // nobody reads the old panel any more
            #pragma unroll 4
            for (int i = t; i < TM * K / 4; i += 256) {
                const int row = i % TM, kk = i / TM * 4;  // lanes have different rows: no bank conflicts
                const float4 v = __ldg(reinterpret_cast<const float4*>(a + (tile_m * TM + row) * LDA + kk));
                panel_a[kk * TM + row] = v.x;
                panel_a[(kk + 1) * TM + row] = v.y;
                panel_a[(kk + 2) * TM + row] = v.z;
                panel_a[(kk + 3) * TM + row] = v.w;
            }
            __syncthreads();
        }

        float sum[8][8];
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            #pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] = 0.f;

        bar_wait(at(&full[s]), parity);
        const float* pa = panel_a + row0;
        const float* pb = shared + s * PANEL + col0;
        #pragma unroll UNROLL
        for (int kk = 0; kk < K; ++kk) {
            const float4 x0 = *reinterpret_cast<const float4*>(pa + kk * TM);
            const float4 x1 = *reinterpret_cast<const float4*>(pa + kk * TM + 64);
            const float4 y0 = *reinterpret_cast<const float4*>(pb + kk * TN);
            const float4 y1 = *reinterpret_cast<const float4*>(pb + kk * TN + 64);
            const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            const float y[8] = {y0.x, y0.y, y0.z, y0.w, y1.x, y1.y, y1.z, y1.w};
            #pragma unroll
            for (int i = 0; i < 8; ++i)
                #pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(at(&empty[s]));       // this warp no longer reads the stage

        float* c = out + (long long)(tile_m * TM + row0) * OUT_STRIDE0 + (tile_n * TN + col0);
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            float4* p = reinterpret_cast<float4*>(c + (i / 4 * 64 + i % 4) * int(OUT_STRIDE0));
            __stcs(p, make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
            __stcs(p + 16, make_float4(sum[i][4], sum[i][5], sum[i][6], sum[i][7]));
        }

        if (t == 0 && k + STAGES < count) {
            bar_wait(at(&empty[s]), parity);
            load(k + STAGES);
        }
        __syncwarp();
    }
}
