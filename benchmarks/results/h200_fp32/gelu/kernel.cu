// Pointwise map of 1610612736 elements, 1 operand(s)
// Techniques: vector_loads(width=2), thread_coarsening(items=4)
#include "problem.h"

constexpr long long K_SIZE = 1610612736LL;

// vector_loads: 2 floats that are neighbours in memory travel together
struct alignas(4 * 2) Pack { float v[2]; };
constexpr int K_VEC = 2;
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }

#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)
__device__ __forceinline__ float fn_erf(float x) { return erff(x); }

__device__ __forceinline__ float compute(float v_x) {
    return ((0.5f * v_x) * (1.0f + fn_erf((v_x * 0.707106781f))));
}

extern "C" __global__ void __launch_bounds__(K_BLOCK) map_elements(const float* __restrict__ p_x, float* __restrict__ p_out) {
    const long long first = (long long)blockIdx.x * (K_BLOCK * 4 * K_VEC) + threadIdx.x * K_VEC;
    Pack a_x[4];  // thread_coarsening
    #pragma unroll
    for (int item = 0; item < 4; ++item) {
        const long long i = first + (long long)item * K_BLOCK * K_VEC;
        if (i + K_VEC <= K_SIZE) {
            a_x[item] = load_pack(p_x + i);
        }
    }
    #pragma unroll
    for (int item = 0; item < 4; ++item) {
        const long long i = first + (long long)item * K_BLOCK * K_VEC;
        if (i + K_VEC <= K_SIZE) {
            Pack result;
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) result.v[k] = compute(a_x[item].v[k]);
            store_pack(p_out + i, result);
        }
    }
}
