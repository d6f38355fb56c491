#include "problem.h"

constexpr int WIDTH = int(X_DIM2);                        // 4095
constexpr int ROWS = 4;                                   // rows of a piece: 65520 bytes, a multiple of 16
constexpr int PIECE = ROWS * WIDTH;
constexpr unsigned PIECE_BYTES = unsigned(PIECE) * 4u;
constexpr int ENTRY = int(X_DIM1) / ROWS;                 // pieces of a batch entry
constexpr int PIECES = int(X_DIM0) * ENTRY;
constexpr int THREADS = 1024;
constexpr int SLOT = 4096;                                // floats of a scratch slot
static_assert(PIECE_BYTES % 16 == 0 && int(X_DIM1) % ROWS == 0, "pieces are aligned and whole");
static_assert(PIECES / BLOCKS + 1 <= ENTRY, "a range meets at most two entries");
static_assert(WIDTH > 3 * THREADS && WIDTH <= 4 * THREADS && WIDTH <= SLOT, "four columns a thread");

__device__ __forceinline__ int range_start(int block) { return int((long long)block * PIECES / BLOCKS); }

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(unsigned bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}

// One block an SM streams a contiguous range of pieces and writes the maxima of each entry it meets to a slot.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
range_maxima(const float* __restrict__ x, float* __restrict__ slots) {
    extern __shared__ __align__(128) float ring[];
    __shared__ __align__(8) unsigned long long bars[STAGES];

    const int t = int(threadIdx.x);
    const int first = range_start(int(blockIdx.x));
    const int count = range_start(int(blockIdx.x) + 1) - first;
    const int first_entry = first / ENTRY;

    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) bar_init(at(&bars[s]), 1u);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (t == 0) {
        for (int s = 0; s < STAGES && s < count; ++s) {
            bar_expect(at(&bars[s]), PIECE_BYTES);
            bulk_load(at(ring + s * PIECE), x + (long long)(first + s) * PIECE, PIECE_BYTES, at(&bars[s]));
        }
    }

    const bool has_last = t + 3 * THREADS < WIDTH;
    const int last = has_last ? t + 3 * THREADS : WIDTH - 1;     // reads stay inside the piece
    const float lowest = __int_as_float(int(0xff800000u));
    float m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;

    int stage = 0;
    unsigned parity = 0;
    for (int k = 0; k < count; ++k) {
        bar_wait(at(&bars[stage]), parity);
        const float* piece = ring + stage * PIECE;
        float a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            a[r] = piece[r * WIDTH + t];
            b[r] = piece[r * WIDTH + t + THREADS];
            c[r] = piece[r * WIDTH + t + 2 * THREADS];
            d[r] = piece[r * WIDTH + last];
        }
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            m0 = fmaxf(m0, a[r]);
            m1 = fmaxf(m1, b[r]);
            m2 = fmaxf(m2, c[r]);
            m3 = fmaxf(m3, d[r]);
        }
        __syncthreads();                                          // all have read this stage
        if (t == 0 && k + STAGES < count) {
            bar_expect(at(&bars[stage]), PIECE_BYTES);
            bulk_load(at(ring + stage * PIECE), x + (long long)(first + k + STAGES) * PIECE, PIECE_BYTES, at(&bars[stage]));
        }
        const int p = first + k;
        if ((p + 1) % ENTRY == 0 || k + 1 == count) {
            float* slot = slots + (int(blockIdx.x) * 2 + (p / ENTRY - first_entry)) * SLOT;
            slot[t] = m0;
            slot[t + THREADS] = m1;
            slot[t + 2 * THREADS] = m2;
            if (has_last) slot[last] = m3;
            m0 = m1 = m2 = m3 = lowest;
        }
        if (++stage == STAGES) { stage = 0; parity ^= 1u; }
    }
}

__device__ __forceinline__ int block_of(int piece) {
    int b = int((long long)piece * BLOCKS / PIECES);
    while (range_start(b) > piece) --b;
    while (range_start(b + 1) <= piece) ++b;
    return b;
}

extern "C" __global__ void __launch_bounds__(256)
join_slots(const float* __restrict__ slots, float* __restrict__ out) {
    const int column = int(blockIdx.x) * 256 + int(threadIdx.x);
    if (column >= WIDTH) return;
    const int entry = int(blockIdx.y);
    const int from = block_of(entry * ENTRY);
    const int to = block_of((entry + 1) * ENTRY - 1);
    float m = __int_as_float(int(0xff800000u));
    for (int b = from; b <= to; ++b) {
        const int which = entry - range_start(b) / ENTRY;         // 0: the range begins in this entry, 1: it goes on into it
        m = fmaxf(m, slots[(b * 2 + which) * SLOT + column]);
    }
    out[(long long)entry * OUT_STRIDE0 + column] = m;
}
