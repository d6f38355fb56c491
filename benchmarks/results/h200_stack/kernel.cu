// Row operator: 4096 rows of 393216
// Techniques: vector_loads(width=4), warp_shuffle_reduction, shared_rows, cluster_rows(blocks=8), online_softmax
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

constexpr int K_CLUSTER = 8, K_PART = 49152;

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

// cluster_rows: the blocks of a cluster write what they have found into each other's shared memory
template <int CALL, class A> __device__ __forceinline__ A reduce_cluster(A mine) {
    __shared__ Words<A> found[K_CLUSTER];
    const Words<A> words = to_words(reduce_block(mine));
    if (threadIdx.x < K_CLUSTER) {
        unsigned int rank, address = (unsigned int)__cvta_generic_to_shared(found);
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(threadIdx.x));
        #pragma unroll
        for (int w = 0; w < sizeof(A) / 4; ++w)
            asm volatile("st.shared::cluster.u32 [%0], %1;"
                         :: "r"(address + (unsigned int)(rank * sizeof(A) + 4 * w)), "r"(words.w[w]) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    A all = from_words<A>(found[0]);
    #pragma unroll
    for (int block = 1; block < K_CLUSTER; ++block) all.merge(from_words<A>(found[block]));
    return all;
}

extern __shared__ __align__(16) float staged[];  // shared_rows
__device__ __forceinline__ Pack& staged_pack(int i) { return *reinterpret_cast<Pack*>(staged + i); }

extern "C" __global__ void __launch_bounds__(K_BLOCK) reduce_rows(const float* __restrict__ p_x, float* __restrict__ p_out) {
    const int lane = threadIdx.x;
    const long long row = blockIdx.x / K_CLUSTER;
    const long long at = row * K_LENGTH;
    const int first = blockIdx.x % K_CLUSTER * K_PART;
    const int last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        staged_pack(i - first) = load_pack(p_x + at + i);
    }
    Online both;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        float values[K_VEC];
        const Pack a_x = staged_pack(i - first);
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            values[k] = v_x;
        }
        both.add(values);
    }
    const Online all_both = reduce_cluster<0>(both);
    const auto m0 = all_both.top;
    const auto m1 = all_both.sum;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        const Pack a_x = staged_pack(i - first);
        Pack result;
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            result.v[k] = (fn_exp((v_x - m0)) / m1);
        }
        store_pack(p_out + at + i, result);
    }
}
