// The strategy's split_half_wgmma (and with it the unswizzled fp16 operand of shifted_row_operand) cannot be applied here: the
// numerics policy fp32 forbids tensor cores and fp16 conversions. Kept are its division of the work: persistent blocks, weights
// resident in shared memory, x read and transformed once a block for all taps into a two-stage ring, streaming stores.
// Instead of the tensor cores, the minimal algorithm F(2,3) lowers the fp32 multiply-adds by a third (4 products for 2 outputs of
// 3 taps): out[2i], out[2i+1] come from x[2i-2 .. 2i+1].
#include "problem.h"

constexpr int CI = int(X_DIM1);
constexpr int CO = int(OUT_DIM1);
constexpr int CO_BLOCK = 64;                      // output channels of a block: 8 warps x 8
constexpr int HALVES = CO / CO_BLOCK;             // 2
constexpr int THREADS = 256;
constexpr int TILES = 128;                        // tiles of two outputs a block makes at once: 32 lanes x 4
constexpr int PAIRS = int(X_DIM2) / 2;            // 32768 pairs of inputs in a row
constexpr int ROW_TILES = int(OUT_DIM2) / 2;      // 32769 tiles in a row
constexpr int POS_BLOCKS = (ROW_TILES + TILES - 1) / TILES;
constexpr int UNITS = POS_BLOCKS * int(X_DIM0);
constexpr int WALKERS = BLOCKS / HALVES;
constexpr int STEPS = CI / CHUNK;                 // even, so that every unit begins in buffer 0
constexpr int PER_THREAD = CHUNK * TILES / THREADS;
static_assert(STEPS % 2 == 0 && BLOCKS % HALVES == 0, "geometry");

struct Raw { float2 before[PER_THREAD], here[PER_THREAD]; };

// Thread t loads tile t % 128 of channels (t / 128) * PER_THREAD + j of the chunk.
__device__ __forceinline__ void load_raw(Raw& raw, const float* __restrict__ x, int unit, int step) {
    const int n = unit / POS_BLOCKS;
    const int tile = (unit - n * POS_BLOCKS) * TILES + (int(threadIdx.x) & (TILES - 1));
    const int ci = step * CHUNK + (int(threadIdx.x) / TILES) * PER_THREAD;
    const float2* row = reinterpret_cast<const float2*>(x) + (size_t(n) * CI + ci) * PAIRS;
    const bool has_before = tile >= 1 && tile - 1 < PAIRS;
    const bool has_here = tile < PAIRS;
    #pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        raw.before[j] = has_before ? __ldg(row + j * PAIRS + tile - 1) : make_float2(0.f, 0.f);
        raw.here[j] = has_here ? __ldg(row + j * PAIRS + tile) : make_float2(0.f, 0.f);
    }
}

__device__ __forceinline__ void store_transformed(const Raw& raw, float4* buffer) {
    float4* to = buffer + (int(threadIdx.x) / TILES) * PER_THREAD * TILES + (int(threadIdx.x) & (TILES - 1));
    #pragma unroll
    for (int j = 0; j < PER_THREAD; ++j) {
        const float d0 = raw.before[j].x, d1 = raw.before[j].y, d2 = raw.here[j].x, d3 = raw.here[j].y;
        to[j * TILES] = make_float4(d0 - d2, d1 + d2, d2 - d1, d1 - d3);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv_f23(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    extern __shared__ float4 shared[];
    float4* const weights = shared;                          // [CI][CO_BLOCK], the four transformed values of a filter
    float4* const ring = shared + CI * CO_BLOCK;             // [2][CHUNK][TILES]
    const int lane = int(threadIdx.x) & 31;
    const int warp = int(threadIdx.x) / 32;
    const int half = int(blockIdx.x) % HALVES;
    const int walker = int(blockIdx.x) / HALVES;
    if (walker >= UNITS) return;                             // the whole block

    for (int i = int(threadIdx.x); i < CI * CO_BLOCK; i += THREADS) {
        const int ci = i / CO_BLOCK, co = i % CO_BLOCK;
        const float* w = weight + (ci * CO + half * CO_BLOCK + co) * 3;
        const float g0 = w[2], g1 = w[1], g2 = w[0];         // out[t] = sum of x[t - 2 + k] * w[2 - k]
        const float ends = g0 + g2;
        weights[i] = make_float4(g0, 0.5f * (ends + g1), 0.5f * (ends - g1), g2);
    }

    Raw raw;
    load_raw(raw, x, walker, 0);
    store_transformed(raw, ring);
    __syncthreads();

    for (int unit = walker; unit < UNITS; unit += WALKERS) {
        float4 sum[8][4];
        #pragma unroll
        for (int r = 0; r < 8; ++r)
            #pragma unroll
            for (int t = 0; t < 4; ++t) sum[r][t] = make_float4(0.f, 0.f, 0.f, 0.f);

        #pragma unroll 1
        for (int step = 0; step < STEPS; ++step) {
            const bool last = step == STEPS - 1;
            const int next_unit = last ? unit + WALKERS : unit;
            const int next_step = last ? 0 : step + 1;
            const bool more = next_unit < UNITS;             // the same for the whole block
            if (more) load_raw(raw, x, next_unit, next_step);

            const float4* d_from = ring + (step & 1) * (CHUNK * TILES) + lane;
            const float4* w_from = weights + step * (CHUNK * CO_BLOCK) + warp * 8;
            #pragma unroll UNROLL
            for (int c = 0; c < CHUNK; ++c) {
                float4 d[4];
                #pragma unroll
                for (int t = 0; t < 4; ++t) d[t] = d_from[c * TILES + t * 32];
                #pragma unroll
                for (int r = 0; r < 8; ++r) {
                    const float4 w = w_from[c * CO_BLOCK + r];
                    #pragma unroll
                    for (int t = 0; t < 4; ++t) {
                        sum[r][t].x = fmaf(w.x, d[t].x, sum[r][t].x);
                        sum[r][t].y = fmaf(w.y, d[t].y, sum[r][t].y);
                        sum[r][t].z = fmaf(w.z, d[t].z, sum[r][t].z);
                        sum[r][t].w = fmaf(w.w, d[t].w, sum[r][t].w);
                    }
                }
            }
            // The other buffer was last read before the barrier of the step before.
            if (more) store_transformed(raw, ring + ((step & 1) ^ 1) * (CHUNK * TILES));
            __syncthreads();
        }

        const int n = unit / POS_BLOCKS;
        const int tile = (unit - n * POS_BLOCKS) * TILES + lane;
        // Rows have an even length, so every pair of outputs lies at a multiple of 8 bytes.
        float2* to = reinterpret_cast<float2*>(out) + (size_t(n) * CO + half * CO_BLOCK + warp * 8) * ROW_TILES + tile;
        #pragma unroll
        for (int r = 0; r < 8; ++r)
            #pragma unroll
            for (int t = 0; t < 4; ++t)
                if (tile + t * 32 < ROW_TILES) {
                    const float4 m = sum[r][t];
                    __stcs(to + r * ROW_TILES + t * 32, make_float2(m.x + m.y + m.z, m.y - m.z - m.w));
                }
    }
}
