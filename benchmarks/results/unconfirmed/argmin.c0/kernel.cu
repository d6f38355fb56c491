#include "problem.h"

// Argmin over the middle dimension of x [128, 4096, 4095], read as one stream of groups of 4 whole rows (65520 bytes).
constexpr int THREADS = 1024;
constexpr int COLS = int(X_DIM2);                       // 4095
constexpr int ROWS_GROUP = 4;
constexpr int GROUP_FLOATS = ROWS_GROUP * COLS;         // 16380
constexpr int GROUP_BYTES = GROUP_FLOATS * 4;           // 65520, a multiple of 16
constexpr int GROUPS_BATCH = int(X_DIM1) / ROWS_GROUP;  // 1024
constexpr int GROUPS = int(X_DIM0) * GROUPS_BATCH;      // 131072
constexpr int PER_THREAD = 4;                           // columns t, t+1024, t+2048, t+3072

static_assert(X_DIM1 % ROWS_GROUP == 0 && GROUP_BYTES % 16 == 0, "groups are whole and aligned");
static_assert(PER_THREAD * THREADS >= COLS, "all columns have a thread");
static_assert((GROUPS + SMS - 1) / SMS <= GROUPS_BATCH, "a run touches at most two batches");

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

// A NaN counts as least; among equals the earlier one stays.
__device__ __forceinline__ bool less(float v, float best) { return !(v >= best) && best == best; }

__device__ __forceinline__ int run_start(int block) { return int((long long)block * GROUPS / SMS); }

extern "C" __global__ void __launch_bounds__(THREADS) stream_rows(const float* __restrict__ x, float* __restrict__ part_value,
                                                                  int* __restrict__ part_row) {
    extern __shared__ __align__(128) float ring[];  // STAGES groups
    __shared__ __align__(8) unsigned long long bars[STAGES];

    const int t = threadIdx.x;
    const int first = run_start(int(blockIdx.x));
    const int count = run_start(int(blockIdx.x) + 1) - first;

    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) bar_init(at(&bars[s]), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) {
            if (s < count) {
                bar_expect(at(&bars[s]), GROUP_BYTES);
                bulk_load(at(ring + s * GROUP_FLOATS), x + (long long)(first + s) * GROUP_FLOATS, GROUP_BYTES, at(&bars[s]));
            }
        }
    }

    int column[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) column[k] = min(t + k * THREADS, COLS - 1);  // the one idle place repeats a column

    const float inf = __int_as_float(0x7f800000);
    float best[PER_THREAD];
    int best_row[PER_THREAD];
    int row = (first % GROUPS_BATCH) * ROWS_GROUP;
    #pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) { best[k] = inf; best_row[k] = row; }

    int slot = 0, stage = 0;
    unsigned parity = 0;
    for (int i = 0; i < count; ++i) {
        if (row == int(X_DIM1)) {  // the run passes into another batch
            const int base = (int(blockIdx.x) * 2 + slot) * COLS;
            #pragma unroll
            for (int k = 0; k < PER_THREAD; ++k) {
                if (t + k * THREADS < COLS) {
                    part_value[base + column[k]] = best[k];
                    part_row[base + column[k]] = best_row[k];
                }
                best[k] = inf;
                best_row[k] = 0;
            }
            row = 0;
            ++slot;
        }
        bar_wait(at(&bars[stage]), parity);
        const float* group = ring + stage * GROUP_FLOATS;
        float v[ROWS_GROUP][PER_THREAD];
        #pragma unroll
        for (int r = 0; r < ROWS_GROUP; ++r) {
            #pragma unroll
            for (int k = 0; k < PER_THREAD; ++k) v[r][k] = group[r * COLS + column[k]];
        }
        __syncthreads();  // all have the group in registers: its buffer is free before the comparisons
        if (t == 0 && i + STAGES < count) {
            bar_expect(at(&bars[stage]), GROUP_BYTES);
            bulk_load(at(ring + stage * GROUP_FLOATS), x + (long long)(first + i + STAGES) * GROUP_FLOATS, GROUP_BYTES,
                      at(&bars[stage]));
        }
        #pragma unroll
        for (int r = 0; r < ROWS_GROUP; ++r) {
            #pragma unroll
            for (int k = 0; k < PER_THREAD; ++k) {
                const bool take = less(v[r][k], best[k]);
                best[k] = take ? v[r][k] : best[k];
                best_row[k] = take ? row + r : best_row[k];
            }
        }
        row += ROWS_GROUP;
        if (++stage == STAGES) { stage = 0; parity ^= 1u; }
    }
    const int base = (int(blockIdx.x) * 2 + slot) * COLS;
    #pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        if (t + k * THREADS < COLS) {
            part_value[base + column[k]] = best[k];
            part_row[base + column[k]] = best_row[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) combine(const float* __restrict__ part_value, const int* __restrict__ part_row,
                                                          long long* __restrict__ out) {
    const int column = blockIdx.x * 256 + threadIdx.x;
    if (column >= COLS) return;
    const int batch = blockIdx.y;
    const long long begin = (long long)batch * GROUPS_BATCH, end = begin + GROUPS_BATCH;
    const int from = int(((begin + 1) * SMS - 1) / GROUPS);  // last block that starts at or before the batch's first group
    const int to = int((end * SMS - 1) / GROUPS);            // last block that starts at or before its last group
    float best = 0.f;
    int row = 0;
    for (int b = from; b <= to; ++b) {
        const int slot = run_start(b) / GROUPS_BATCH == batch ? 0 : 1;
        const int i = (b * 2 + slot) * COLS + column;
        const float v = part_value[i];
        const int r = part_row[i];
        if (b == from || less(v, best)) { best = v; row = r; }
    }
    out[(long long)batch * OUT_STRIDE0 + column] = row;
}
