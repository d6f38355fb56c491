// A warp owns a row at a time and walks over the rows; each lane takes 16-byte vectors in batches of UNROLL, with the next
// batch, of the next row at a row's end, on its way, and rescales its running sum once a batch.
#include "problem.h"
#include <cuda_bf16.h>

constexpr int WARPS = 8;
constexpr int BLOCK = WARPS * 32;
constexpr int UNROLL = 4;
constexpr int NROWS = int(LOGITS_ROWS);
constexpr int NCLS = int(LOGITS_COLS);
constexpr int VECS = NCLS / 8 / 32;      // vectors of a lane
constexpr int BATCHES = VECS / UNROLL;
static_assert(NCLS % (8 * 32 * UNROLL) == 0, "whole batches");
constexpr int STRIDE = BLOCKS * WARPS;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float SMOOTH = 0.1f;

__device__ __forceinline__ float ex2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
// Volatile, so that the loads stay in front of the arithmetic of the batch before.
__device__ __forceinline__ uint4 load4(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ float lo(unsigned u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float hi(unsigned u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ __nv_bfloat162 as2(unsigned u) { return *reinterpret_cast<__nv_bfloat162*>(&u); }
__device__ __forceinline__ float warp_sum(float v) {
    #pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
    #pragma unroll
    for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
row_losses(const __nv_bfloat16* __restrict__ logits, const long long* __restrict__ labels, float2* __restrict__ partial) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int row = warp * BLOCKS + int(blockIdx.x);   // the last, partial round is spread over all blocks
    float total = 0.f, used = 0.f;
    const uint4* const vectors = reinterpret_cast<const uint4*>(logits) + lane;
    uint4 v[UNROLL];
    int label = -1;
    if (row < NROWS) {
        const uint4* src = vectors + row * (NCLS / 8);
        #pragma unroll
        for (int j = 0; j < UNROLL; ++j) v[j] = load4(src + j * 32);
        const long long t = __ldg(labels + row);
        label = t >= 0 && t < NCLS ? int(t) : -1;
    }
    #pragma unroll 1
    while (row < NROWS) {
        const int next = row + STRIDE;
        const uint4* src = vectors + row * (NCLS / 8);
        float m = -INFINITY, s = 0.f, mean = 0.f, at_label = 0.f;
        long long next_label = -1;
        #pragma unroll
        for (int b = 0; b < BATCHES; ++b) {
            uint4 ahead[UNROLL];
            #pragma unroll
            for (int j = 0; j < UNROLL; ++j) ahead[j] = make_uint4(0, 0, 0, 0);
            if (b + 1 < BATCHES) {
                #pragma unroll
                for (int j = 0; j < UNROLL; ++j) ahead[j] = load4(src + ((b + 1) * UNROLL + j) * 32);
            } else if (next < NROWS) {
                const uint4* from = vectors + next * (NCLS / 8);
                #pragma unroll
                for (int j = 0; j < UNROLL; ++j) ahead[j] = load4(from + j * 32);
            }
            if (b == 0) {
                if (label >= 0) at_label = __bfloat162float(logits[row * NCLS + label]);
                if (next < NROWS) next_label = __ldg(labels + next);
            }
            __nv_bfloat162 p = as2(v[0].x), q = as2(v[0].y);
            p = __hmax2(p, as2(v[0].z));
            q = __hmax2(q, as2(v[0].w));
            #pragma unroll
            for (int j = 1; j < UNROLL; ++j) {
                p = __hmax2(p, __hmax2(as2(v[j].x), as2(v[j].y)));
                q = __hmax2(q, __hmax2(as2(v[j].z), as2(v[j].w)));
            }
            p = __hmax2(p, q);
            const float grown = fmaxf(m, fmaxf(__low2float(p), __high2float(p)));
            s *= ex2((m - grown) * LOG2E);
            m = grown;
            float s0 = 0.f, s1 = 0.f, s2 = 0.f, s3 = 0.f;
            #pragma unroll
            for (int j = 0; j < UNROLL; ++j) {
                const float a0 = lo(v[j].x), a1 = hi(v[j].x), a2 = lo(v[j].y), a3 = hi(v[j].y);
                const float a4 = lo(v[j].z), a5 = hi(v[j].z), a6 = lo(v[j].w), a7 = hi(v[j].w);
                s0 += ex2((a0 - m) * LOG2E);
                s1 += ex2((a1 - m) * LOG2E);
                s2 += ex2((a2 - m) * LOG2E);
                s3 += ex2((a3 - m) * LOG2E);
                s0 += ex2((a4 - m) * LOG2E);
                s1 += ex2((a5 - m) * LOG2E);
                s2 += ex2((a6 - m) * LOG2E);
                s3 += ex2((a7 - m) * LOG2E);
                const float t = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7));
                mean = fmaf(t, 1.f / float(NCLS), mean);
            }
            s += (s0 + s1) + (s2 + s3);
            #pragma unroll
            for (int j = 0; j < UNROLL; ++j) v[j] = ahead[j];
        }
        const float top = warp_max(m);
        s = warp_sum(s * ex2((m - top) * LOG2E));
        mean = warp_sum(mean);
        const float ls = logf(s);
        const float loss = (1.f - SMOOTH) * ((top - at_label) + ls) + SMOOTH * ((top - mean) + ls);
        if (label >= 0) {
            total = fmaf(loss, 1.f / float(NROWS), total);
            used += 1.f;
        }
        label = next_label >= 0 && next_label < NCLS ? int(next_label) : -1;
        row = next;
    }

    __shared__ float2 of_warp[WARPS];
    if (lane == 0) of_warp[warp] = make_float2(total, used);
    __syncthreads();
    if (threadIdx.x == 0) {
        float a = 0.f, c = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) { a += of_warp[w].x; c += of_warp[w].y; }
        partial[blockIdx.x] = make_float2(a, c);
    }
}

extern "C" __global__ void __launch_bounds__(256)
finish(const float2* __restrict__ partial, __nv_bfloat16* __restrict__ out) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float a = 0.f, c = 0.f;
    #pragma unroll
    for (int i = 0; i < (BLOCKS + 255) / 256; ++i) {
        const int at = i * 256 + int(threadIdx.x);
        if (at < BLOCKS) {
            const float2 p = partial[at];
            a += p.x;
            c += p.y;
        }
    }
    a = warp_sum(a);
    c = warp_sum(c);
    __shared__ float2 of_warp[8];
    if (lane == 0) of_warp[warp] = make_float2(a, c);
    __syncthreads();
    if (threadIdx.x == 0) {
        a = 0.f;
        c = 0.f;
        #pragma unroll
        for (int w = 0; w < 8; ++w) { a += of_warp[w].x; c += of_warp[w].y; }
        out[0] = __float2bfloat16_rn(a * (float(NROWS) / c));
    }
}

