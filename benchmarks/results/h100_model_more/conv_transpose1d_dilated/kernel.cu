#include "problem.h"

constexpr int CI = int(X_DIM1), CO = int(OUT_DIM1), TAPS = 5, DILATION = 3;
constexpr int LEN = int(X_DIM2), OUT_LEN = int(OUT_DIM2);
constexpr int TILE = 256;                        // positions of a block; all 64 output channels, all 32 input channels
constexpr int HALO = 12;
constexpr int PITCH = TILE + HALO;               // 268 floats, 67 vectors
constexpr int VECTORS = PITCH / 4;
constexpr int WEIGHTS = CI * TAPS * CO;

// weight [ci][co][tap] -> packed [ci][tap][co], so that blocks copy it as it lies.
extern "C" __global__ void __launch_bounds__(256) pack_weights(const float* __restrict__ weight, float* __restrict__ packed) {
    const int i = int(blockIdx.x) * 256 + int(threadIdx.x);
    if (i >= WEIGHTS) return;
    const int co = i % CO, tap = (i / CO) % TAPS, ci = i / (CO * TAPS);
    packed[i] = weight[(ci * CO + co) * TAPS + tap];
}

__device__ __forceinline__ void copy16(float* to, const float* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

extern "C" __global__ void __launch_bounds__(256, 2)
conv_tiles(const float* __restrict__ x, const float* __restrict__ packed, float* __restrict__ out) {
    extern __shared__ float4 shared[];
    float* const ws = reinterpret_cast<float*>(shared);      // [CI][TAPS][CO]
    float* const xs = ws + WEIGHTS;                          // [CI][PITCH], x from position start - 12 on
    const int tid = int(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int start = int(blockIdx.x) * TILE;
    const int n = int(blockIdx.y);

    for (int i = tid; i < CI * VECTORS; i += 256) {
        const int ci = i / VECTORS, q = i - ci * VECTORS;
        const int p = start - HALO + 4 * q;                  // a multiple of 4, as LEN is: all four or none
        float* to = xs + ci * PITCH + 4 * q;
        if (p >= 0 && p < LEN) copy16(to, x + (n * CI + ci) * LEN + p);
        else *reinterpret_cast<float4*>(to) = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    #pragma unroll
    for (int i = 0; i < WEIGHTS / 4 / 256; ++i) copy16(ws + 4 * (tid + 256 * i), packed + 4 * (tid + 256 * i));
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();

    // A warp makes 8 channels; a lane the positions 4 lane + {0..3} and 128 + 4 lane + {0..3} of the tile.
    float sum[8][8];
    #pragma unroll
    for (int r = 0; r < 8; ++r)
        #pragma unroll
        for (int c = 0; c < 8; ++c) sum[r][c] = 0.f;

    const float* wr = ws + warp * 8;
    const float* xr = xs + 4 * lane;
    #pragma unroll UNROLL
    for (int ci = 0; ci < CI; ++ci) {
        float v[2][16];                                      // x[t - 12 .. t + 3] of both groups of positions
        #pragma unroll
        for (int g = 0; g < 2; ++g)
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 part = *reinterpret_cast<const float4*>(xr + ci * PITCH + g * 128 + 4 * i);
                v[g][4 * i] = part.x; v[g][4 * i + 1] = part.y; v[g][4 * i + 2] = part.z; v[g][4 * i + 3] = part.w;
            }
        #pragma unroll
        for (int k = 0; k < TAPS; ++k) {
            const float4 wa = *reinterpret_cast<const float4*>(wr + (ci * TAPS + k) * CO);
            const float4 wb = *reinterpret_cast<const float4*>(wr + (ci * TAPS + k) * CO + 4);
            const float w[8] = {wa.x, wa.y, wa.z, wa.w, wb.x, wb.y, wb.z, wb.w};
            #pragma unroll
            for (int r = 0; r < 8; ++r)
                #pragma unroll
                for (int g = 0; g < 2; ++g)
                    #pragma unroll
                    for (int j = 0; j < 4; ++j)
                        sum[r][g * 4 + j] = fmaf(w[r], v[g][HALO + j - DILATION * k], sum[r][g * 4 + j]);
        }
    }

    // Output rows are a multiple of four long: every store is an aligned vector.
    const int t = start + 4 * lane;
    float* to = out + (n * CO + warp * 8) * OUT_LEN + t;
    #pragma unroll
    for (int r = 0; r < 8; ++r)
        #pragma unroll
        for (int g = 0; g < 2; ++g)
            if (t + g * 128 < OUT_LEN)
                __stcs(reinterpret_cast<float4*>(to + r * OUT_LEN + g * 128),
                       make_float4(sum[r][g * 4], sum[r][g * 4 + 1], sum[r][g * 4 + 2], sum[r][g * 4 + 3]));
}
