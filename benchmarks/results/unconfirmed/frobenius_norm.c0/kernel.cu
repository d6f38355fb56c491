#include "problem.h"

constexpr int VECTORS = int(X_SIZE / 4);
constexpr int TILE = 256 * UNROLL * STEPS;                  // float4s that a block of the first launch sums
constexpr int TILES = VECTORS / TILE;
constexpr int CHUNK = 256 * SCALE_UNROLL;                   // float4s that a block of the last launch scales
constexpr int CHUNKS = VECTORS / CHUNK;
static_assert(X_SIZE % 4 == 0 && VECTORS % TILE == 0 && VECTORS % CHUNK == 0, "no ragged tiles");

__device__ __forceinline__ float warp_sum(float value) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    return value;
}

// The sum over a block, in thread 0.
template <int THREADS>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float of_warp[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.f;
    if (threadIdx.x < 32) sum = warp_sum(threadIdx.x < THREADS / 32 ? of_warp[threadIdx.x] : 0.f);
    return sum;
}

extern "C" __global__ void __launch_bounds__(256, 8) squares(const float* __restrict__ x, float* __restrict__ partial) {
    const float4* p = reinterpret_cast<const float4*>(x) + (int(blockIdx.x) * TILE + int(threadIdx.x));
    float a = 0.f, b = 0.f, c = 0.f, d = 0.f;
    #pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        float4 v[UNROLL];
        #pragma unroll
        for (int k = 0; k < UNROLL; ++k) v[k] = p[k * 256];
        #pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            a = fmaf(v[k].x, v[k].x, a);
            b = fmaf(v[k].y, v[k].y, b);
            c = fmaf(v[k].z, v[k].z, c);
            d = fmaf(v[k].w, v[k].w, d);
        }
        p += UNROLL * 256;
    }
    const float sum = block_sum<256>((a + b) + (c + d));
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(1024) reciprocal_norm(const float* __restrict__ partial, float* __restrict__ scale) {
    float sum = 0.f;
    #pragma unroll 8
    for (int i = int(threadIdx.x); i < TILES; i += 1024) sum += partial[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x == 0) scale[0] = 1.f / sqrtf(sum);
}

// Blocks in the opposite order: what the first launch read last is found in L2. What comes from memory is marked to be
// evicted first, as the stores are, so that it does not displace what is still to be found.
extern "C" __global__ void __launch_bounds__(256) normalise(const float* __restrict__ x, const float* __restrict__ scale,
                                                            float* __restrict__ out) {
    const int first = (CHUNKS - 1 - int(blockIdx.x)) * CHUNK + int(threadIdx.x);
    const float4* from = reinterpret_cast<const float4*>(x) + first;
    float4* to = reinterpret_cast<float4*>(out) + first;
    float4 v[SCALE_UNROLL];
    #pragma unroll
    for (int k = 0; k < SCALE_UNROLL; ++k) v[k] = __ldcs(from + k * 256);
    const float s = __ldg(scale);
    #pragma unroll
    for (int k = 0; k < SCALE_UNROLL; ++k)
        __stcs(to + k * 256, make_float4(v[k].x * s, v[k].y * s, v[k].z * s, v[k].w * s));
}
