#include "problem.h"

// One block walks along one row. A step is BLOCK * VECS float4; a warp owns VECS * 512 contiguous bytes of it, read as
// VECS fully coalesced float4 a lane. The next step's loads are issued before the current step is scanned.

constexpr int WARPS = BLOCK / 32;
constexpr int COLS4 = int(X_COLS) / 4;
constexpr int STEP4 = BLOCK * VECS;          // float4 of one step
constexpr int STEPS = COLS4 / STEP4;
static_assert(int(X_COLS) % (4 * STEP4) == 0, "rows are whole steps");
static_assert(BLOCK % 128 == 0, "warp totals are read as float4");

extern "C" __global__ void __launch_bounds__(BLOCK, OCCUPANCY / BLOCK)
row_cumsum(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float totals[2][WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int first = warp * (32 * VECS) + lane;
    const float4* __restrict__ src = reinterpret_cast<const float4*>(x + (long long)blockIdx.x * X_STRIDE0) + first;
    float4* __restrict__ dst = reinterpret_cast<float4*>(out + (long long)blockIdx.x * OUT_STRIDE0) + first;

    float4 next[VECS];
    #pragma unroll
    for (int k = 0; k < VECS; ++k) next[k] = __ldcs(src + k * 32);

    float carry = 0.f;
    #pragma unroll 2
    for (int step = 0; step < STEPS; ++step) {
        float4 v[VECS];
        #pragma unroll
        for (int k = 0; k < VECS; ++k) v[k] = next[k];
        if (step + 1 < STEPS) {
            #pragma unroll
            for (int k = 0; k < VECS; ++k) next[k] = __ldcs(src + (step + 1) * STEP4 + k * 32);
        }

        float s[VECS];
        #pragma unroll
        for (int k = 0; k < VECS; ++k) {          // inclusive within a float4
            v[k].y += v[k].x;
            v[k].z += v[k].y;
            v[k].w += v[k].z;
            s[k] = v[k].w;
        }
        #pragma unroll
        for (int d = 1; d < 32; d *= 2) {         // inclusive over the lanes, VECS independent chains
            #pragma unroll
            for (int k = 0; k < VECS; ++k) {
                const float t = __shfl_up_sync(0xffffffffu, s[k], d);
                if (lane >= d) s[k] += t;
            }
        }
        float total = 0.f;                        // of the warp; what lies before vector k within the warp goes to s[k]
        #pragma unroll
        for (int k = 0; k < VECS; ++k) {
            const float whole = __shfl_sync(0xffffffffu, s[k], 31);
            float before = __shfl_up_sync(0xffffffffu, s[k], 1);
            if (lane == 0) before = 0.f;
            s[k] = total + before;
            total += whole;
        }
        float* slot = totals[step & 1];
        if (lane == 0) slot[warp] = total;
        __syncthreads();  // one a step: a slot is written again only after the next step's barrier

        float base = carry;
        float all = 0.f, mine = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; w += 4) {
            const float4 t = *reinterpret_cast<const float4*>(slot + w);
            if (w == warp) mine = all;
            all += t.x;
            if (w + 1 == warp) mine = all;
            all += t.y;
            if (w + 2 == warp) mine = all;
            all += t.z;
            if (w + 3 == warp) mine = all;
            all += t.w;
        }
        base += mine;
        carry += all;

        #pragma unroll
        for (int k = 0; k < VECS; ++k) {
            const float b = base + s[k];
            float4 r;
            r.x = b + v[k].x;
            r.y = b + v[k].y;
            r.z = b + v[k].z;
            r.w = b + v[k].w;
            __stcs(dst + step * STEP4 + k * 32, r);
        }
    }
}

