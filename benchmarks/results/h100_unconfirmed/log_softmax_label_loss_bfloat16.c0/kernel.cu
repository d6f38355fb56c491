// loss of a row = log(sum exp(x - mx)) - sum((x - mx) * exp(y - my)) / sum(exp(y - my)); the mean over rows in a second launch.
#include "problem.h"
#include <cuda_bf16.h>

constexpr int COLS = int(X_COLS), ROWS = int(X_ROWS);
constexpr int BLOCK = 256;
constexpr int ITEMS = 2;
static_assert(COLS == BLOCK * ITEMS * 8 && ROWS % 4 == 0, "a block holds one row: two vectors of eight of each input a thread");

__device__ __forceinline__ float low(unsigned u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float high(unsigned u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ unsigned pack(float a, float b) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&h);
}

__device__ __forceinline__ float warp_max(float v) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}
__device__ __forceinline__ float warp_sum(float v) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}
__device__ __forceinline__ float max8(const float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
    return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}
__device__ __forceinline__ float sum8(const float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

__device__ __forceinline__ float fast_exp(float v) {   // of v <= 0
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v * 1.4426950408889634f));
    return r;
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS)
row_losses(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ y, float* __restrict__ rows) {
    __shared__ __align__(16) float words[5][BLOCK / 32];
    const int tid = threadIdx.x;
    const size_t start = size_t(blockIdx.x) * (COLS / 8) + tid;
    const uint4* xv = reinterpret_cast<const uint4*>(x) + start;
    const uint4* yv = reinterpret_cast<const uint4*>(y) + start;
    unsigned a[4 * ITEMS], b[4 * ITEMS];
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const uint4 p = xv[i * BLOCK];
        a[4 * i] = p.x; a[4 * i + 1] = p.y; a[4 * i + 2] = p.z; a[4 * i + 3] = p.w;
    }
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const uint4 p = yv[i * BLOCK];
        b[4 * i] = p.x; b[4 * i + 1] = p.y; b[4 * i + 2] = p.z; b[4 * i + 3] = p.w;
    }
    float mx = low(a[0]), my = low(b[0]);
    #pragma unroll
    for (int i = 0; i < 4 * ITEMS; ++i) {
        mx = fmaxf(mx, fmaxf(low(a[i]), high(a[i])));
        my = fmaxf(my, fmaxf(low(b[i]), high(b[i])));
    }
    mx = warp_max(mx);
    my = warp_max(my);
    if ((tid & 31) == 0) { words[0][tid >> 5] = mx; words[1][tid >> 5] = my; }
    __syncthreads();
    mx = max8(words[0]);
    my = max8(words[1]);

    float sx[2] = {0.f, 0.f}, sy[2] = {0.f, 0.f}, sxy[2] = {0.f, 0.f};
    #pragma unroll
    for (int i = 0; i < 4 * ITEMS; ++i) {
        const float d0 = low(a[i]) - mx, d1 = high(a[i]) - mx;
        const float e0 = fast_exp(low(b[i]) - my), e1 = fast_exp(high(b[i]) - my);
        sx[0] += fast_exp(d0); sx[1] += fast_exp(d1);
        sy[0] += e0; sy[1] += e1;
        sxy[0] = fmaf(d0, e0, sxy[0]); sxy[1] = fmaf(d1, e1, sxy[1]);
    }
    const float p = warp_sum(sx[0] + sx[1]);
    const float q = warp_sum(sy[0] + sy[1]);
    const float r = warp_sum(sxy[0] + sxy[1]);
    if ((tid & 31) == 0) { words[2][tid >> 5] = p; words[3][tid >> 5] = q; words[4][tid >> 5] = r; }
    __syncthreads();
    if (tid == 0) rows[blockIdx.x] = logf(sum8(words[2])) - sum8(words[4]) / sum8(words[3]);
}

// One block adds the rows in a fixed order.
extern "C" __global__ void __launch_bounds__(1024) add_rows(const float* __restrict__ rows, __nv_bfloat16* __restrict__ out) {
    __shared__ float of_warp[32];
    const int tid = threadIdx.x;
    float sum = 0.f;
    for (int i = tid; i < ROWS / 4; i += 1024) {
        const float4 v = reinterpret_cast<const float4*>(rows)[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    sum = warp_sum(sum);
    if ((tid & 31) == 0) of_warp[tid >> 5] = sum;
    __syncthreads();
    if (tid < 32) {
        sum = warp_sum(of_warp[tid]);
        if (tid == 0) out[0] = __float2bfloat16_rn(sum * (1.f / float(ROWS)));
    }
}
