#include "problem.h"
#include <cuda_bf16.h>

constexpr int COLS = int(X_COLS);
constexpr int BLOCK = 256;
constexpr int ITEMS = 2;
static_assert(COLS == BLOCK * ITEMS * 8, "a block holds one row: two vectors of eight a thread");

__device__ __forceinline__ float low(unsigned u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float high(unsigned u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ unsigned pack(float a, float b) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const unsigned*>(&h);
}
__device__ __forceinline__ unsigned add2(unsigned a, unsigned b) { return pack(low(a) + low(b), high(a) + high(b)); }
__device__ __forceinline__ unsigned scale2(unsigned v, unsigned w, float r) {
    return pack(low(v) * r * low(w), high(v) * r * high(w));
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS)
add_rms_norm(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ residual,
             const __nv_bfloat16* __restrict__ weight, __nv_bfloat16* __restrict__ out) {
    const int tid = threadIdx.x;
    const size_t at = size_t(blockIdx.x) * (COLS / 8) + tid;
    const uint4* xv = reinterpret_cast<const uint4*>(x) + at;
    const uint4* rv = reinterpret_cast<const uint4*>(residual) + at;
    const uint4* wv = reinterpret_cast<const uint4*>(weight) + tid;
    uint4 a[ITEMS], b[ITEMS];
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) a[i] = __ldg(xv + i * BLOCK);
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) b[i] = __ldg(rv + i * BLOCK);

    float s0 = 0.f, s1 = 0.f, s2 = 0.f, s3 = 0.f;
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        a[i].x = add2(a[i].x, b[i].x); a[i].y = add2(a[i].y, b[i].y);
        a[i].z = add2(a[i].z, b[i].z); a[i].w = add2(a[i].w, b[i].w);
        s0 = fmaf(low(a[i].x), low(a[i].x), s0); s1 = fmaf(high(a[i].x), high(a[i].x), s1);
        s2 = fmaf(low(a[i].y), low(a[i].y), s2); s3 = fmaf(high(a[i].y), high(a[i].y), s3);
        s0 = fmaf(low(a[i].z), low(a[i].z), s0); s1 = fmaf(high(a[i].z), high(a[i].z), s1);
        s2 = fmaf(low(a[i].w), low(a[i].w), s2); s3 = fmaf(high(a[i].w), high(a[i].w), s3);
    }
    // The weight is found in L1 or L2; it is on its way during the reduction.
    uint4 w[ITEMS];
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) w[i] = __ldg(wv + i * BLOCK);

    float sum = (s0 + s1) + (s2 + s3);
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __shared__ __align__(16) float of_warp[BLOCK / 32];
    if ((tid & 31) == 0) of_warp[tid >> 5] = sum;
    __syncthreads();
    const float4 p = *reinterpret_cast<const float4*>(of_warp);
    const float4 q = *reinterpret_cast<const float4*>(of_warp + 4);
    sum = ((p.x + p.y) + (p.z + p.w)) + ((q.x + q.y) + (q.z + q.w));
    const float r = rsqrtf(fmaf(sum, 1.f / float(COLS), 1e-6f));

    uint4* to = reinterpret_cast<uint4*>(out) + at;
    #pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        uint4 o;
        o.x = scale2(a[i].x, w[i].x, r); o.y = scale2(a[i].y, w[i].y, r);
        o.z = scale2(a[i].z, w[i].z, r); o.w = scale2(a[i].w, w[i].w, r);
        __stcs(to + i * BLOCK, o);
    }
}

