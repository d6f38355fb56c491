// Row operator: 32768 rows of 65535
// Techniques: cluster_rows(blocks=4), register_rows, warp_shuffle_reduction
#include "problem.h"

constexpr long long K_LENGTH = 65535LL;

struct Pack { float v[1]; };
constexpr int K_VEC = 1;
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }

#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)
__device__ __forceinline__ float fn_abs(float x) { return fabsf(x); }

constexpr int K_CLUSTER = 4, K_PART = 16384;

constexpr int K_ITEMS = (K_PART + K_BLOCK * K_VEC - 1) / (K_BLOCK * K_VEC);

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

extern "C" __global__ void __launch_bounds__(K_BLOCK) reduce_rows(const float* __restrict__ p_x, float* __restrict__ p_out) {
    const int lane = threadIdx.x;
    const long long row = blockIdx.x / K_CLUSTER;
    asm volatile("barrier.cluster.arrive.relaxed;");  // this block has begun, so its memory is there
    const long long at = row * K_LENGTH;
    const int first = blockIdx.x % K_CLUSTER * K_PART;
    const int last = first + K_PART < K_LENGTH ? first + K_PART : K_LENGTH;
    Pack x_x[K_ITEMS];  // register_rows
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = first + (item * K_BLOCK + lane) * K_VEC;
        if (i < last) {
            x_x[item] = load_pack(p_x + at + i);
        }
    }
    LongSum m0_sum;
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = first + (item * K_BLOCK + lane) * K_VEC;
        if (i < last) {
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) {
                const float v_x = x_x[item].v[k];
                m0_sum.add(fn_abs(v_x), i + k);
            }
        }
    }
    const LongSum all_m0_sum = reduce_cluster<0>(m0_sum);
    const auto m0 = all_m0_sum.value();
    #pragma unroll
    for (int item = 0; item < K_ITEMS; ++item) {
        const int i = first + (item * K_BLOCK + lane) * K_VEC;
        if (i < last) {
            Pack result;
            #pragma unroll
            for (int k = 0; k < K_VEC; ++k) {
                const float v_x = x_x[item].v[k];
                result.v[k] = (v_x / m0);
            }
            store_pack(p_out + at + i, result);
        }
    }
}
