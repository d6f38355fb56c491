#include "problem.h"

// A block owns LANES * 4 neighbouring pixels of one image; 8 slices of LANES threads share them, 8 channels each.
constexpr int SLICES = 8;
constexpr int THREADS = LANES * SLICES;
constexpr int CHANNELS = int(X_DIM1);
constexpr int PER_SLICE = CHANNELS / SLICES;        // 8 channels, 32 registers a thread
constexpr int PLANE4 = int(X_STRIDE1) / 4;          // float4 of one channel
static_assert(CHANNELS % SLICES == 0 && X_STRIDE1 % (LANES * 4) == 0, "no edges");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS) rms_norm(const float* __restrict__ x,
                                                                                 float* __restrict__ out) {
    __shared__ float4 partial[SLICES][LANES];
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    const long long offset = (long long)blockIdx.y * (X_STRIDE0 / 4) + slice * (PER_SLICE * PLANE4) + int(blockIdx.x) * LANES + lane;
    const float4* from = reinterpret_cast<const float4*>(x) + offset;
    float4* to = reinterpret_cast<float4*>(out) + offset;

    float4 v[PER_SLICE];
    #pragma unroll
    for (int k = 0; k < PER_SLICE; ++k) v[k] = __ldcs(from + k * PLANE4);

    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    #pragma unroll
    for (int k = 0; k < PER_SLICE; ++k) {
        sum.x = fmaf(v[k].x, v[k].x, sum.x);
        sum.y = fmaf(v[k].y, v[k].y, sum.y);
        sum.z = fmaf(v[k].z, v[k].z, sum.z);
        sum.w = fmaf(v[k].w, v[k].w, sum.w);
    }
    partial[slice][lane] = sum;
    __syncthreads();

    float4 total = partial[0][lane];
    #pragma unroll
    for (int s = 1; s < SLICES; ++s) {
        const float4 p = partial[s][lane];
        total.x += p.x; total.y += p.y; total.z += p.z; total.w += p.w;
    }
    constexpr float INV_CHANNELS = 1.f / float(CHANNELS);  // a power of two: exact
    float4 scale;
    scale.x = 1.f / sqrtf(total.x * INV_CHANNELS + float(EPS));
    scale.y = 1.f / sqrtf(total.y * INV_CHANNELS + float(EPS));
    scale.z = 1.f / sqrtf(total.z * INV_CHANNELS + float(EPS));
    scale.w = 1.f / sqrtf(total.w * INV_CHANNELS + float(EPS));

    #pragma unroll
    for (int k = 0; k < PER_SLICE; ++k) {
        __stcs(to + k * PLANE4, make_float4(v[k].x * scale.x, v[k].y * scale.y, v[k].z * scale.z, v[k].w * scale.w));
    }
}
