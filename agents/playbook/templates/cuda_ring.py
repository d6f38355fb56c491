"""CUDA C++ text: a ring of pieces that bulk copies fill and empty, and a reduction over the blocks of a team.

The constants that it needs are named in ``cuda_team``, which writes the kernels around it.
"""

from __future__ import annotations

from agents.playbook.compiler.cuda.tensor_copies import ARRIVE_ALONE, BARRIERS

HARDWARE = (
    BARRIERS.lstrip("\n")
    + ARRIVE_ALONE
    + r"""
// bulk copies, and words that blocks exchange through global memory
using Word = unsigned long long;
__device__ __forceinline__ void fence_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, int bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(barrier)) : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_stores_read() {  // all but the last N
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void fence_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void sync_block() { asm volatile("bar.sync 1, %0;" :: "n"(K_BLOCK) : "memory"); }
__device__ __forceinline__ void store_partial(Word* at, Word word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ Word load_partial(const Word* at) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
"""
)
"""Instructions that only a card has; emulation puts plain C++ in their place."""

RING = r"""
// team_rows: a row is its first elements up to a boundary of packs, pieces of whole packs, and its last elements
__device__ __forceinline__ int head_of(long long at) { return K_LENGTH % K_VEC ? (int)(-at & (K_VEC - 1)) : 0; }
__device__ __forceinline__ int lead_of(long long at, int head) {  // packs between a line's start and the first pack
    return K_LENGTH % (K_LINE * K_VEC) ? (int)((at + head) / K_VEC) & (K_LINE - 1) : 0;
}
__device__ __forceinline__ int first_of(int lead, int piece) { return piece ? 0 : lead; }
__device__ __forceinline__ int end_of(int lead, int head, int piece) {  // pieces begin with lines of memory
    const int left = ((int)K_LENGTH - head) / K_VEC + lead - piece * K_PIECE;
    return left < 0 ? 0 : left < K_PIECE ? left : K_PIECE;
}
__device__ __forceinline__ int edge_of(int head) {  // this thread's element outside of whole packs, if there is one
    const int middle = ((int)K_LENGTH - head) / K_VEC * K_VEC, lane = threadIdx.x;
    return lane < head ? lane : lane + middle;
}
template <class T> __device__ __forceinline__ float edge_value(const T* input, int team, int rank, int step) {
    const long long row = team + (long long)step * K_TEAMS, at = row * K_LENGTH;
    const int edge = edge_of(head_of(at));
    return rank == 0 && row < K_ROWS && edge < K_LENGTH ? (float)input[at + edge] : 0.0f;
}
__device__ __forceinline__ int next_slot(int slot) { return slot + 1 == K_SLOTS ? 0 : slot + 1; }

struct Walk {  // a piece of a block's share of its rows
    int round = 0, piece, first, last;
    __device__ Walk(int first, int last) : piece(first), first(first), last(last) {}
    __device__ long long begin(int team, int& from, int& count) const {
        const long long at = (team + (long long)round * K_TEAMS) * K_LENGTH;
        const int head = head_of(at), lead = lead_of(at, head);
        from = first_of(lead, piece);
        count = end_of(lead, head, piece) - from;
        return at + head + (piece * K_PIECE + from - lead) * K_VEC;
    }
    __device__ bool ends() const { return piece + 1 == last; }
    __device__ void step() { if (++piece == last) { piece = first; ++round; } }
};

// One thread keeps the ring full: a slot is filled again when its results have left it.
template <class T> __device__ __forceinline__ void feed(
    T* ring, Barrier* full, Barrier* ready, const T* const (&inputs)[K_INPUTS], T* output,
    int team, int first, int last) {
    const int total = ((int)(K_ROWS - 1 - team) / K_TEAMS + 1) * (last - first);
    Walk next(first, last), now(first, last);
    int next_at = 0, at = 0, filled = 0;
    unsigned int parity = 0;
    auto fill = [&] {
        int from, count;
        const long long begin = next.begin(team, from, count);
        count = max(count, 0);
        expect(&full[next_at], count * (K_INPUTS * 16));
        for (int input = 0; input < K_INPUTS && count; ++input)
            bulk_load(ring + ((next_at * K_INPUTS + input) * K_PIECE + from) * K_VEC, inputs[input] + begin,
                      count * 16, &full[next_at]);
        next.step();
        next_at = next_slot(next_at);
        ++filled;
    };
    while (filled < K_SLOTS && filled < total) fill();
    for (int number = 0; number < total; ++number) {
        wait(&ready[at], parity);
        int from, count;
        const long long begin = now.begin(team, from, count);
        if (count > 0) bulk_store(output + begin, ring + (at * K_INPUTS * K_PIECE + from) * K_VEC, count * 16);
        commit_stores();
        int left = number + 1;  // slots that are empty again
        if (now.ends()) {
            wait_stores_read<0>();
        } else {
            wait_stores_read<2>();
            left -= 2;
        }
        while (filled < left + K_SLOTS && filled < total) fill();
        now.step();
        at = next_slot(at);
        if (at == 0) parity ^= 1u;
    }
    wait_stores();
}
"""

ONLINE = r"""
__device__ __forceinline__ Online reduce_warp(Online mine) {  // with one exponential in place of one a step
    float top = mine.top;
    #pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    mine.sum *= fn_exp(mine.top - top);
    mine.top = top;
    #pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) mine.sum += __shfl_xor_sync(0xffffffffu, mine.sum, mask);
    return mine;
}
"""

TEAM_REDUCTION = r"""
// Reduces over the threads of all blocks of a team. Blocks store their partial results with the number of the
// reduction, and poll until all numbers are there: four places in turn are enough, as no block is two reductions ahead.
template <class A> __device__ __forceinline__ A reduce_team(
    A mine, Word* partials, int rank, int number, bool any, int wanted) {
    __shared__ Words<A> slots[K_BLOCK / 32], together;
    constexpr int N = sizeof(A) / 4;
    const int lane = threadIdx.x & 31;
    if (any) {
        mine = reduce_warp(mine);
        if (lane == 0) slots[threadIdx.x / 32] = to_words(mine);
    }
    sync_block();
    if (threadIdx.x < 32) {
        A all;
        if (any) {
            if (lane < K_BLOCK / 32) all = from_words<A>(slots[lane]);
            all = reduce_warp(all);
            const Words<A> words = to_words(all);
            #pragma unroll
            for (int w = 0; w < N; ++w)
                if (K_TEAM > 1 && lane == w)
                    store_partial(
                        partials + ((number & 3) * K_WORDS + w) * K_TEAM + rank, (Word)(number + 1) << 32 | words.w[w]);
        }
        if (K_TEAM > 1 && wanted >= 0) {
            constexpr int M = (K_TEAM + 31) / 32;
            const Word* from = partials + (wanted & 3) * (K_WORDS * K_TEAM);
            Word seen[M][N];
            bool late;
            do {  // all loads at once: one after the other they would take as many times as long
                late = false;
                #pragma unroll
                for (int m = 0; m < M; ++m)
                    #pragma unroll
                    for (int w = 0; w < N; ++w)
                        seen[m][w] = load_partial(from + w * K_TEAM + min(32 * m + lane, K_TEAM - 1));
                #pragma unroll
                for (int m = 0; m < M; ++m)
                    #pragma unroll
                    for (int w = 0; w < N; ++w) late |= (unsigned int)(seen[m][w] >> 32) != (unsigned int)(wanted + 1);
            } while (late);
            __syncwarp();
            all = A();
            #pragma unroll
            for (int m = 0; m < M; ++m) {
                Words<A> words;
                #pragma unroll
                for (int w = 0; w < N; ++w) words.w[w] = (unsigned int)seen[m][w];
                if (32 * m + lane < K_TEAM) all.merge(from_words<A>(words));
            }
            all = reduce_warp(all);
        }
        if (lane == 0) together = to_words(all);
    }
    sync_block();
    return from_words<A>(together);
}
"""

CLEAR = r"""
extern "C" __global__ void clear_partials(unsigned long long* __restrict__ p_partials) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at < K_PARTIALS) p_partials[at] = 0;
}
"""
