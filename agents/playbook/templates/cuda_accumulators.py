"""CUDA C++ text: accumulators of a thread over a row, and their combination over the threads that share the row.

Accumulators are structs of 32-bit words with ``add``, ``merge`` and ``value``; the combining functions move them as
words, so that one version of each serves all.
"""

from __future__ import annotations

from agents.playbook.templates.source import fill

ACCUMULATORS = {
    "Sum": """
struct Sum {
    float total = 0.0f;
    __device__ void add(float v, int) { total += v; }
    __device__ void merge(const Sum& other) { total += other.total; }
    __device__ float value() const { return total; }
};
""",
    "LongSum": """
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
""",
    "Peak": """
struct Peak {
    float top = -3.402823466e38f;  // finite, so that exp(x - top) is never exp(inf - inf) for an idle thread
    __device__ void add(float v, int) { top = fmaxf(top, v); }
    __device__ void merge(const Peak& other) { top = fmaxf(top, other.top); }
    __device__ float value() const { return top; }
};
""",
    "Online": """
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
""",
    "Moments": """
struct Moments {  // one_pass_moments: Welford's recurrence, merged as in Chan, Golub and LeVeque (1979)
    float count = 0.0f, mean = 0.0f, squares = 0.0f;
    __device__ void add(float v, int) {
        count += 1.0f;
        const float gap = v - mean;
        mean += __fdividef(gap, count);
        squares += gap * (v - mean);
    }
    __device__ void merge(const Moments& other) {
        const float all = count + other.count;
        const float gap = other.mean - mean, share = __fdividef(other.count, fmaxf(all, 1.0f));
        mean += gap * share;
        squares += other.squares + gap * gap * count * share;
        count = all;
    }
};
""",
    "ShortMoments": """
struct ShortMoments {  // sums relative to a thread's first value: n values lose at most n roundings of the spread
    float count = 0.0f, origin = 0.0f, part = 0.0f, squares = 0.0f;
    template <int N> __device__ void add(const float (&v)[N]) {
        if (count == 0.0f) origin = v[0];
        float sum = 0.0f, square = 0.0f;
        #pragma unroll
        for (int k = 0; k < N; ++k) {
            const float gap = v[k] - origin;
            sum += gap;
            square += gap * gap;
        }
        part += sum;
        squares += square;
        count += N;
    }
    __device__ operator Moments() const {
        Moments all;
        if (count == 0.0f) return all;
        const float shift = part / count;
        all.count = count;
        all.mean = origin + shift;
        all.squares = fmaxf(squares - part * shift, 0.0f * squares);
        return all;
    }
};
""",
    "WideMoments": """
struct WideMoments {  // one_pass_moments: sums in float64, so that squares of values far from zero do not cancel
    double total = 0.0, squares = 0.0;
    __device__ void add(float v, int) { total += v; squares += (double)v * v; }
    __device__ void merge(const WideMoments& other) { total += other.total; squares += other.squares; }
    __device__ float deviations(double n) const { return (float)fmax(squares - total * total / n, 0.0 * squares); }
};
""",
    "Extreme": """
struct $NAME {  // a NaN wins over every number
    float best = $START;
    __device__ void add(float v, int) {
#if __CUDA_ARCH__ >= 800
        asm("$INSTRUCTION.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(v));
#else
        best = (v $COMPARE best) | (v != v) ? v : best;
#endif
    }
    __device__ void merge(const $NAME& other) { add(other.best, 0); }
    __device__ float value() const { return best; }
};
""",
    "Place": """
struct $NAME {  // a NaN wins over every number, the first of equals over the later ones
    float best = $START;
    int at = -1;
    __device__ static bool better(float v, float best) { return (v $COMPARE best) | ((v != v) & (best == best)); }
    __device__ void take(bool wanted, float v, int i) { best = wanted ? v : best; at = wanted ? i : at; }
    __device__ void add(float v, int i) { take((at < 0) | better(v, best), v, i); }  // a thread's places only grow
    __device__ void merge(const $NAME& other) {
        const bool earlier = (other.at < at) & !better(best, other.best);
        take((other.at >= 0) & ((at < 0) | better(other.best, best) | earlier), other.best, other.at);
    }
    __device__ long long value() const { return at; }
};
""",
}

EXTREMES = {
    "Largest": ("Extreme", {"START": "-FN_INF", "COMPARE": ">", "INSTRUCTION": "max"}),
    "Smallest": ("Extreme", {"START": "FN_INF", "COMPARE": "<", "INSTRUCTION": "min"}),
    "ArgLargest": ("Place", {"START": "-FN_INF", "COMPARE": ">"}),
    "ArgSmallest": ("Place", {"START": "FN_INF", "COMPARE": "<"}),
}
"""Struct of each extreme, and what stands in it."""

SIZES = {
    **dict.fromkeys(("Sum", "Peak", "Largest", "Smallest"), 4),
    **dict.fromkeys(("Online", "ArgLargest", "ArgSmallest"), 8),
    **dict.fromkeys(("LongSum", "Moments"), 12),
    "WideMoments": 16,
}
"""Bytes of each accumulator."""

WORDS = """
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
"""

WARP = """
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
"""

BLOCK_SHUFFLE = (
    WARP
    + """
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
"""
)

BLOCK_TREE = """
template <class A> __device__ __forceinline__ A reduce_block(A mine) {  // a tree in shared memory
    __shared__ Words<A> slots[K_BLOCK];
    slots[threadIdx.x] = to_words(mine);
    __syncthreads();
    for (int half = K_BLOCK / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) {
            mine.merge(from_words<A>(slots[threadIdx.x + half]));
            slots[threadIdx.x] = to_words(mine);
        }
        __syncthreads();
    }
    const A all = from_words<A>(slots[0]);
    __syncthreads();
    return all;
}
"""

SLICES = """
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
"""


CLUSTER = """
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
"""


def accumulator(name: str) -> str:
    """Return the struct of an accumulator."""
    if name not in EXTREMES:
        return ACCUMULATORS[name]
    struct, values = EXTREMES[name]
    return fill(ACCUMULATORS[struct], NAME=name, **values)
