// Row operator: 524160 rows of 4096
// Techniques: column_slices(slices=8)
#include "problem.h"

constexpr long long K_LENGTH = 4096LL;

constexpr int K_INNER = 4095, K_SLICES = 8, K_COLUMNS = K_BLOCK / K_SLICES;

struct Pack { float v[1]; };
constexpr int K_VEC = 1;
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }

#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)

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

template <class A> __device__ __forceinline__ A reduce_slices(A mine) {  // column_slices: the slices of one column
    if (K_SLICES == 1) return mine;
    __shared__ Words<A> slots[K_BLOCK];
    slots[threadIdx.x] = to_words(mine);
    __syncthreads();
    A all = from_words<A>(slots[threadIdx.x % K_COLUMNS]);
    for (int s = 1; s < K_SLICES; ++s) all.merge(from_words<A>(slots[s * K_COLUMNS + threadIdx.x % K_COLUMNS]));
    __syncthreads();
    return all;
}

extern "C" __global__ void __launch_bounds__(K_BLOCK) reduce_rows(const float* __restrict__ p_x, float* __restrict__ p_out) {
    const int slice = threadIdx.x / K_COLUMNS;
    constexpr int K_TILES = (K_INNER + K_COLUMNS * K_VEC - 1) / (K_COLUMNS * K_VEC);
    const long long tile = blockIdx.x;
    const long long outer = tile / K_TILES;
    const int column = (tile % K_TILES) * (K_COLUMNS * K_VEC) + threadIdx.x % K_COLUMNS * K_VEC;
    const int last = column < K_INNER ? K_LENGTH : 0;  // threads beyond the edge only take part in barriers
    const long long at = outer * K_LENGTH * K_INNER + column;
    const long long row = outer * K_INNER + column;
    LongSum m0_sum;
    for (int l = slice; l < last; l += K_SLICES) {
        const Pack a_x = load_pack(p_x + at + (long long)l * K_INNER);
        {
            const float v_x = a_x.v[0];
            m0_sum.add(v_x, l);
        }
    }
    const LongSum all_m0_sum = reduce_slices(m0_sum);
    const auto m0 = all_m0_sum.value();
    if (slice == 0 && column < K_INNER) {
        p_out[row] = m0;
    }
}
