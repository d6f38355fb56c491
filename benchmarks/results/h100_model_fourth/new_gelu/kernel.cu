#include "problem.h"

__device__ __forceinline__ float gelu(float x) {
    // 0.5 * (1 + tanh(u)) is the logistic function of 2u, without the cancellation of 1 + tanh.
    const float u = 1.5957691216057308f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1.0f + __expf(-u));
}
__device__ __forceinline__ float4 gelu4(float4 v) { return make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)); }

constexpr int ITEMS = 4;
extern "C" __global__ void __launch_bounds__(BLOCK) activate(const float* __restrict__ x, float* __restrict__ out) {
    const int first = blockIdx.x * (int(BLOCK) * ITEMS) + threadIdx.x;
    const float4* from = reinterpret_cast<const float4*>(x) + first;
    float4* to = reinterpret_cast<float4*>(out) + first;
    float4 v[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) v[i] = __ldcs(from + i * int(BLOCK));
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) __stcs(to + i * int(BLOCK), gelu4(v[i]));
}
