// bulk_ring's six stages: the ring has 13 slots, the eight pieces of a part and five ahead of it, as in_place_turnover asks;
// so up to six pieces (five ahead and the one that turns over) are on their way while a part is held.
// A 17th warp issues the bulk copies, so that no computing warp waits for a store to have read its slot.
#include "problem.h"

constexpr int COLS = int(X_COLS);
constexpr int ROWS = int(X_ROWS);
constexpr int TEAM = 12;
constexpr int TEAMS = SMS / TEAM;
constexpr int PART = COLS / TEAM;                 // 32768 floats a block
constexpr int PIECE = 4096;                       // 16 KiB
constexpr int PIECES = PART / PIECE;              // 8
constexpr int SLOTS = 13;
constexpr int COMPUTE = 512;
constexpr unsigned PIECE_BYTES = PIECE * 4;
constexpr int LAG = 2;
static_assert(COLS % TEAM == 0 && PART == PIECE * 8 && PIECE == COMPUTE * 8, "parts are exact");

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(unsigned bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
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
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void compute_sync() { asm volatile("bar.sync 1, 512;" ::: "memory"); }

// (m, s) of two sets; at least one maximum is finite.
__device__ __forceinline__ void merge(float& m, float& s, float m2, float s2) {
    const float top = fmaxf(m, m2);
    s = s * __expf(m - top) + s2 * __expf(m2 - top);
    m = top;
}
__device__ __forceinline__ void merge_lanes(float& m, float& s, int first) {
    #pragma unroll
    for (int step = first; step > 0; step /= 2) {
        const float m2 = __shfl_xor_sync(0xffffffffu, m, step);
        const float s2 = __shfl_xor_sync(0xffffffffu, s, step);
        merge(m, s, m2, s2);
    }
}

extern "C" __global__ void zero_counters(unsigned* __restrict__ counters) {
    counters[threadIdx.x] = 0u;
}

extern "C" __global__ void __launch_bounds__(COMPUTE + 32, 1)
log_softmax(const float* __restrict__ x, float2* pairs, unsigned* counters, float* __restrict__ out) {
    extern __shared__ __align__(128) float ring[];          // SLOTS x PIECE
    __shared__ __align__(8) unsigned long long full[SLOTS];
    __shared__ __align__(8) unsigned long long ready[SLOTS];
    __shared__ float2 of_warp[COMPUTE / 32];
    __shared__ float2 of_row;

    const int tid = threadIdx.x;
    const int team = int(blockIdx.x) / TEAM, rank = int(blockIdx.x) % TEAM;
    const int rounds = (ROWS - team + TEAMS - 1) / TEAMS;   // rows team, team + TEAMS, ...

    if (tid == 0) {
        for (int s = 0; s < SLOTS; ++s) {
            bar_init(at(&full[s]), 1);
            bar_init(at(&ready[s]), COMPUTE / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();

    if (tid >= COMPUTE) {
        if (tid == COMPUTE) {
            const int total = rounds * PIECES;
            const long long first = (long long)team * COLS + rank * PART;
            constexpr long long STEP = (long long)TEAMS * COLS;
            auto offset = [&](int p) { return first + (p / PIECES) * STEP + (p % PIECES) * PIECE; };
            auto load = [&](int p, int slot) {
                bar_expect(at(&full[slot]), PIECE_BYTES);
                bulk_load(at(ring + slot * PIECE), x + offset(p), PIECE_BYTES, at(&full[slot]));
            };
            for (int p = 0; p < SLOTS && p < total; ++p) load(p, p);
            int slot = 0, refill = 0, refill_slot = 0;
            unsigned parity = 0;
            for (int p = 0; p < total; ++p) {
                bar_wait(at(&ready[slot]), parity);
                bulk_store(out + offset(p), at(ring + slot * PIECE), PIECE_BYTES);
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                int until;
                if (p % PIECES == PIECES - 1) {
                    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                    until = p;
                } else {
                    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LAG) : "memory");
                    until = p - LAG;
                }
                for (; refill <= until; ++refill) {
                    if (refill + SLOTS < total) load(refill + SLOTS, refill_slot);
                    if (++refill_slot == SLOTS) refill_slot = 0;
                }
                if (++slot == SLOTS) { slot = 0; parity ^= 1u; }
            }
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        return;
    }

    const int lane = tid & 31, warp = tid >> 5;
    unsigned* counter = counters + team * 32;
    float2* team_pairs = pairs + team * 32;                 // two rounds of 16 words, 12 used
    int slot0 = 0;
    unsigned parity0 = 0;
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        float m = __int_as_float(0xff800000), s = 0.f;      // minus infinity
        int slot = slot0;
        unsigned parity = parity0;
        #pragma unroll 1
        for (int j = 0; j < PIECES; ++j) {
            bar_wait(at(&full[slot]), parity);
            const float4* from = reinterpret_cast<const float4*>(ring + slot * PIECE) + tid;
            const float4 a = from[0], b = from[COMPUTE];
            const float top = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
            const float next = fmaxf(m, top);
            const float e = (__expf(a.x - next) + __expf(a.y - next)) + (__expf(a.z - next) + __expf(a.w - next));
            const float f = (__expf(b.x - next) + __expf(b.y - next)) + (__expf(b.z - next) + __expf(b.w - next));
            s = fmaf(s, __expf(m - next), e + f);
            m = next;
            if (++slot == SLOTS) { slot = 0; parity ^= 1u; }
        }
        merge_lanes(m, s, 16);
        if (lane == 0) of_warp[warp] = make_float2(m, s);
        compute_sync();
        if (warp == 0) {
            float2 v = of_warp[lane & 15];
            merge_lanes(v.x, v.y, 8);
            float2* slots = team_pairs + (round & 1) * 16;
            if (lane == 0) {
                asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" :: "l"(slots + rank), "f"(v.x), "f"(v.y) : "memory");
                asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(counter), "r"(1u) : "memory");
            }
            __syncwarp();
            const unsigned target = unsigned(TEAM) * unsigned(round + 1);
            unsigned seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
            while (seen < target);
            __syncwarp();
            const int i = lane & 15;
            float pm = __int_as_float(0xff800000), ps = 0.f;
            if (i < TEAM)
                asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(pm), "=f"(ps) : "l"(slots + i) : "memory");
            __syncwarp();
            merge_lanes(pm, ps, 8);                         // lanes 12 to 15 meet 4 to 7 first: one is always finite
            if (lane == 0) of_row = make_float2(pm, logf(ps));
        }
        compute_sync();
        const float2 row = of_row;
        slot = slot0;
        #pragma unroll 1
        for (int j = 0; j < PIECES; ++j) {
            float4* here = reinterpret_cast<float4*>(ring + slot * PIECE) + tid;
            float4 a = here[0], b = here[COMPUTE];
            a.x = (a.x - row.x) - row.y; a.y = (a.y - row.x) - row.y;
            a.z = (a.z - row.x) - row.y; a.w = (a.w - row.x) - row.y;
            b.x = (b.x - row.x) - row.y; b.y = (b.y - row.x) - row.y;
            b.z = (b.z - row.x) - row.y; b.w = (b.w - row.x) - row.y;
            here[0] = a;
            here[COMPUTE] = b;
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) bar_arrive(at(&ready[slot]));
            if (++slot == SLOTS) slot = 0;
        }
        slot0 = slot;
        parity0 = parity;
    }
}
