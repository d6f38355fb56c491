// Row operator: 4096 rows of 393216
// Techniques: vector_loads(width=4), warp_shuffle_reduction, online_softmax
#include "problem.h"

constexpr long long K_LENGTH = 393216LL;

// vector_loads: 4 floats that are neighbours in memory travel together
struct alignas(4 * 4) Pack { float v[4]; };
constexpr int K_VEC = 4;
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }

#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)
__device__ __forceinline__ float fn_exp(float x) { return expf(x); }

struct Online {  // online_softmax: maximum so far, and the sum of exponentials relative to it
    float top = -3.402823466e38f;
    float sum = 0.0f;
    __device__ void raise(float v) {
        const float higher = fmaxf(top, v);
        sum *= fn_exp(top - higher);
        top = higher;
    }
    template <int N> __device__ void add(const float (&v)[N]) {
        float best = v[0];
        #pragma unroll
        for (int k = 1; k < N; ++k) best = fmaxf(best, v[k]);
        raise(best);
        #pragma unroll
        for (int k = 0; k < N; ++k) sum += fn_exp(v[k] - top);
    }
    __device__ void merge(const Online& other) {
        const float higher = fmaxf(top, other.top);
        sum = sum * fn_exp(top - higher) + other.sum * fn_exp(other.top - higher);
        top = higher;
    }
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

extern "C" __global__ void __launch_bounds__(K_BLOCK) reduce_rows(const float* __restrict__ p_x, float* __restrict__ p_out) {
    const int lane = threadIdx.x;
    const long long row = blockIdx.x;
    const long long at = row * K_LENGTH;
    Online both;
    for (int i = lane * K_VEC; i < K_LENGTH; i += K_BLOCK * K_VEC) {
        float values[K_VEC];
        const Pack a_x = load_pack(p_x + at + i);
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            values[k] = v_x;
        }
        both.add(values);
    }
    const Online all_both = reduce_block(both);
    const auto m0 = all_both.top;
    const auto m1 = all_both.sum;
    for (int i = lane * K_VEC; i < K_LENGTH; i += K_BLOCK * K_VEC) {
        const Pack a_x = load_pack(p_x + at + i);
        Pack result;
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            result.v[k] = (fn_exp((v_x - m0)) / m1);
        }
        store_pack(p_out + at + i, result);
    }
}
