// Row operator: 32768 rows of 8192
// Techniques: vector_loads(width=4), register_rows, warp_shuffle_reduction
#include "problem.h"

constexpr long long K_LENGTH = 8192LL;

// vector_loads: 4 floats that are neighbours in memory travel together
struct alignas(4 * 4) Pack { float v[4]; };
constexpr int K_VEC = 4;
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }

#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)
__device__ __forceinline__ float fn_rsqrt(float x) { return 1.0f / sqrtf(x); }

constexpr int K_ITEMS = (K_LENGTH + K_BLOCK * K_VEC - 1) / (K_BLOCK * K_VEC);

struct Sum {
    float total = 0.0f;
    __device__ void add(float v, int) { total += v; }
    __device__ void merge(const Sum& other) { total += other.total; }
    __device__ float value() const { return total; }
};

template <class A> struct Words { unsigned int w[sizeof(A) / 4]; };
template <class A> __device__ __forceinline__ Words<A> to_words(const A& a) {
    Words<A> words;
    memcpy(&words, &a, sizeof(A));
    return words;
}
template <class A> __device__ __forceinline__ A from_words(const Words<A>& words) {
    A a;
    memcpy(&a, &words, sizeof(A));
    return a;
}

template <class A> __device__ __forceinline__ A reduce_warp(A mine) {  // every lane gets the result
    #pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) {
        Words<A> words = to_words(mine);
        #pragma unroll
        for (int w = 0; w < sizeof(A) / 4; ++w) words.w[w] = __shfl_xor_sync(0xffffffffu, words.w[w], mask);
        mine.merge(from_words<A>(words));
    }
    return mine;
}

template <class A> __device__ __forceinline__ A reduce_block(A mine) {  // warp_shuffle_reduction
    __shared__ Words<A> slots[32];
    mine = reduce_warp(mine);
    if (K_BLOCK == 32) return mine;
    if ((threadIdx.x & 31) == 0) slots[threadIdx.x / 32] = to_words(mine);
    __syncthreads();
    A all = (threadIdx.x & 31) < K_BLOCK / 32 ? from_words<A>(slots[threadIdx.x & 31]) : A();
    all = reduce_warp(all);
    __syncthreads();
    return all;
}

extern "C" __global__ void __launch_bounds__(K_BLOCK) reduce_rows(const float* __restrict__ p_x, const float* __restrict__ p_ln_weight, const float* __restrict__ p_ln_bias, float* __restrict__ p_out) {
    const int lane = threadIdx.x;
    const long long row = blockIdx.x;
    const long long at = row * K_LENGTH;
    Pack x_x[K_ITEMS];  // register_rows
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = (item * K_BLOCK + lane) * K_VEC;
        if (K_LENGTH % (K_BLOCK * K_VEC) == 0 || i < K_LENGTH) {
            x_x[item] = load_pack(p_x + at + i);
        }
    }
    Sum m0_sum;
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = (item * K_BLOCK + lane) * K_VEC;
        if (K_LENGTH % (K_BLOCK * K_VEC) == 0 || i < K_LENGTH) {
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) {
                const float v_x = x_x[item].v[k];
                m0_sum.add(v_x, i + k);
            }
        }
    }
    const Sum all_m0_sum = reduce_block(m0_sum);
    const auto m0 = all_m0_sum.value();
    const auto q0 = (m0 / 8192.0f);
    Sum m1_sum;
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = (item * K_BLOCK + lane) * K_VEC;
        if (K_LENGTH % (K_BLOCK * K_VEC) == 0 || i < K_LENGTH) {
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) {
                const float v_x = x_x[item].v[k];
                const auto t0 = (v_x - q0);
                m1_sum.add((t0 * t0), i + k);
            }
        }
    }
    const Sum all_m1_sum = reduce_block(m1_sum);
    const auto m1 = all_m1_sum.value();
    const auto q1 = fn_rsqrt(((m1 / 8192.0f) + 1e-05f));
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = (item * K_BLOCK + lane) * K_VEC;
        if (K_LENGTH % (K_BLOCK * K_VEC) == 0 || i < K_LENGTH) {
            const Pack a_ln_bias = load_pack(p_ln_bias + i);
            const Pack a_ln_weight = load_pack(p_ln_weight + i);
            Pack result;
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) {
                const float v_ln_bias = a_ln_bias.v[k];
                const float v_ln_weight = a_ln_weight.v[k];
                const float v_x = x_x[item].v[k];
                result.v[k] = ((((v_x - q0) * q1) * v_ln_weight) + v_ln_bias);
            }
            store_pack(p_out + at + i, result);
        }
    }
}
