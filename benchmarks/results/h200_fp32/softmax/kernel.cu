// Row operator: 4096 rows of 393216
// Techniques: vector_loads(width=4), cluster_rows(blocks=16), shared_rows, warp_shuffle_reduction
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

constexpr int K_CLUSTER = 16, K_PART = 24576;

struct LongSum {  // the part is put away now and then: chains of float32 additions stay short
    float total = 0.0f, part = 0.0f;
    int count = 0;
    __device__ void add(float v, int) {
        part += v;
        if (++count == 64) { total += part; part = 0.0f; count = 0; }
    }
    __device__ void merge(const LongSum& other) { total += other.total + other.part; }
    __device__ float value() const { return total + part; }
};
struct Peak {
    float top = -3.402823466e38f;  // finite, so that exp(x - top) is never exp(inf - inf) for an idle thread
    __device__ void add(float v, int) { top = fmaxf(top, v); }
    __device__ void merge(const Peak& other) { top = fmaxf(top, other.top); }
    __device__ float value() const { return top; }
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
    if (CALL == 0) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");  // all blocks have begun
    if (threadIdx.x < K_CLUSTER) {
        unsigned int rank, address = (unsigned int)__cvta_generic_to_shared(found);
        asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(threadIdx.x));
        #pragma unroll
        for (int w = 0; w < sizeof(A) / 4; ++w)
            asm volatile("st.shared::cluster.u32 [%0], %1;"
                         :: "r"(address + (unsigned int)(rank * sizeof(A) + 4 * w)), "r"(words.w[w]) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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
    asm volatile("barrier.cluster.arrive.relaxed;");  // this block has begun, so its memory is there
    const long long at = row * K_LENGTH;
    const int first = blockIdx.x % K_CLUSTER * K_PART;
    const int last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        staged_pack(i - first) = load_pack(p_x + at + i);
    }
    Peak m0_sum;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        const Pack a_x = staged_pack(i - first);
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            m0_sum.add(v_x, i + k);
        }
    }
    const Peak all_m0_sum = reduce_cluster<0>(m0_sum);
    const auto m0 = all_m0_sum.value();
    LongSum m1_sum;
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        const Pack a_x = staged_pack(i - first);
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            const float kept = fn_exp((v_x - m0));
            staged_pack(i - first).v[k] = kept;
            m1_sum.add(kept, i + k);
        }
    }
    const LongSum all_m1_sum = reduce_cluster<1>(m1_sum);
    const auto m1 = all_m1_sum.value();
    for (int i = first + lane * K_VEC; i < last; i += K_BLOCK * K_VEC) {
        const Pack a_x = staged_pack(i - first);
        Pack result;
        #pragma unroll
        for (int k = 0; k < K_VEC; ++k) {
            const float v_x = a_x.v[k];
            result.v[k] = (v_x / m1);
        }
        store_pack(p_out + at + i, result);
    }
}
