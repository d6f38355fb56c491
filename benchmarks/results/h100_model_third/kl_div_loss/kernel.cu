#include "problem.h"
constexpr int PARTIALS = int(PREDICTIONS_DIM0 / 4);
#define DIVISOR float(PREDICTIONS_DIM0)

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    return value;
}
template <int THREADS>
__device__ __forceinline__ float block_sum(float value) {  // in thread 0
    __shared__ float of_warp[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32) value = warp_sum(value);
    return value;
}

constexpr int ROWS = 4, VECTORS = int(PREDICTIONS_COLS / 4);
__device__ __forceinline__ float term(float p, float t) { return t == 0.0f ? 0.0f : t * logf(__fdividef(t, p)); }
extern "C" __global__ void __launch_bounds__(BLOCK) rows(const float* __restrict__ predictions, const float* __restrict__ targets, float* __restrict__ partial) {
    const long long first = (long long)blockIdx.x * ROWS * VECTORS;
    const float4* from = reinterpret_cast<const float4*>(predictions) + first;
    const float4* wanted = reinterpret_cast<const float4*>(targets) + first;
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    for (int row = 0; row < ROWS; ++row) {
        const float4* p = from + row * VECTORS;
        const float4* t = wanted + row * VECTORS;
#pragma unroll 4
        for (int i = threadIdx.x; i < VECTORS; i += int(BLOCK)) {
            const float4 v = p[i], w = t[i];
            a += term(v.x, w.x); b += term(v.y, w.y); c += term(v.z, w.z); d += term(v.w, w.w);
        }
    }
    const float sum = block_sum<int(BLOCK)>((a + b) + (c + d));
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) finish(const float* __restrict__ partial, float* __restrict__ out) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < int(PARTIALS); i += 1024) sum += partial[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) out[0] = sum / DIVISOR;
}
