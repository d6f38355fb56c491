#include "problem.h"

// Three teams of 44 blocks hold a group (8 channels of an image, 8 MiB) each in shared memory. A block's part, about
// 190.7 KiB, is 16 pieces of 12 KiB (the last one shorter) in a ring of 18 slots: piece p of the block's sequence of groups
// lies in slot p % 18. 12 warps compute, one thread of a 13th moves: it stores a finished piece, waits until the store has
// read its slot and loads piece p + 18 there. So the ring has 18 stages instead of bulk_ring's 6: in_place_turnover needs
// the whole part and two spare slots resident.

constexpr int TEAMS = 3;
constexpr int TEAM = 44;
constexpr int CHANNELS = int(GN_NUM_CHANNELS / GN_NUM_GROUPS);      // of a group: 8
constexpr int CHANNEL4 = int(X_DIM2 * X_DIM3) / 4;                  // float4 of a channel: 65536
constexpr int GROUP4 = CHANNELS * CHANNEL4;                         // 524288
constexpr int GROUPS = int(X_DIM0 * GN_NUM_GROUPS);                 // 896
constexpr int COMPUTE = 384;
constexpr int WARPS = COMPUTE / 32;                                 // 12
constexpr int THREADS = COMPUTE + 32;
constexpr int PIECE = 768;                                          // float4: 12 KiB
constexpr int PIECES = 16;                                          // of a part
constexpr int SLOTS = 18;

static_assert((GROUP4 + TEAM - 1) / TEAM <= PIECES * PIECE && GROUP4 / TEAM > (PIECES - 1) * PIECE, "16 pieces");
static_assert(PIECE == 2 * COMPUTE && GN_AFFINE, "two float4 a thread and piece");

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
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}
__device__ __forceinline__ void compute_sync() { asm volatile("bar.sync 1, 384;" ::: "memory"); }

__device__ __forceinline__ float warp_sum(float value) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

// First float4 of a block's part of a group.
__device__ __forceinline__ int part_begin(int member) { return int((long long)member * GROUP4 / TEAM); }

extern "C" __global__ void zero_counters(unsigned* __restrict__ counters) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < GROUPS) counters[i] = 0u;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
group_norm(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float2* partials,
           unsigned* counters, float* __restrict__ out) {
    extern __shared__ __align__(128) float4 ring[];
    __shared__ __align__(8) unsigned long long full[SLOTS], done[SLOTS];
    __shared__ float warp_sums[WARPS], warp_squares[WARPS];
    __shared__ float statistics[2];

    const int tid = int(threadIdx.x);
    const int team = int(blockIdx.x) / TEAM;
    const int member = int(blockIdx.x) - team * TEAM;
    const int begin = part_begin(member);
    const int size = part_begin(member + 1) - begin;                // float4 of the part
    const int tail = size - (PIECES - 1) * PIECE;                   // of its last piece
    const int rounds = (GROUPS - team + TEAMS - 1) / TEAMS;

    if (tid == 0) {
        for (int s = 0; s < SLOTS; ++s) {
            bar_init(at(&full[s]), 1);
            bar_init(at(&done[s]), WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();

    if (tid >= COMPUTE) {
        if (tid == COMPUTE) {                                       // the thread that moves the pieces
            const int total = rounds * PIECES;
            auto offset = [&](const int p) {                        // in float4, of piece p
                const int round = p / PIECES, i = p % PIECES;
                return (long long)(team + round * TEAMS) * GROUP4 + begin + i * PIECE;
            };
            auto bytes = [&](const int p) { return unsigned(p % PIECES < PIECES - 1 ? PIECE : tail) * 16u; };
            const float4* const x4 = reinterpret_cast<const float4*>(x);
            float4* const out4 = reinterpret_cast<float4*>(out);
            for (int p = 0; p < SLOTS && p < total; ++p) {
                bar_expect(at(&full[p]), bytes(p));
                bulk_load(at(ring + p * PIECE), x4 + offset(p), bytes(p), at(&full[p]));
            }
            int slot = 0;
            unsigned parity = 0;
            for (int p = 0; p < total; ++p) {
                bar_wait(at(&done[slot]), parity);
                bulk_store(out4 + offset(p), at(ring + slot * PIECE), bytes(p));
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                const int next = p + SLOTS;
                if (next < total) {
                    bar_expect(at(&full[slot]), bytes(next));
                    bulk_load(at(ring + slot * PIECE), x4 + offset(next), bytes(next), at(&full[slot]));
                }
                if (++slot == SLOTS) { slot = 0; parity ^= 1u; }
            }
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        return;
    }

    const int lane = tid & 31, warp = tid >> 5;
    const float count = float(size * 4);
    const int channel0 = begin / CHANNEL4;                          // of the group's eight
    const int channel1 = min(channel0 + 1, CHANNELS - 1);
    const int edge = (channel0 + 1) * CHANNEL4 - begin;             // from this float4 of the part on it is the next channel

    int slot = 0;
    unsigned parity = 0;
    #pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int group = team + round * TEAMS;
        const int first_slot = slot;

        // Sum, while the pieces arrive.
        float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
        #pragma unroll 1
        for (int i = 0; i < PIECES; ++i) {
            bar_wait(at(&full[slot]), parity);
            const float4* piece = ring + slot * PIECE;
            const int n = i < PIECES - 1 ? PIECE : tail;
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int j = tid + k * COMPUTE;
                if (j < n) {
                    const float4 v = piece[j];
                    s.x += v.x; s.y += v.y; s.z += v.z; s.w += v.w;
                }
            }
            if (++slot == SLOTS) { slot = 0; parity ^= 1u; }
        }
        const float warp_part = warp_sum((s.x + s.y) + (s.z + s.w));
        if (lane == 0) warp_sums[warp] = warp_part;
        compute_sync();
        float own_mean = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) own_mean += warp_sums[w];
        own_mean /= count;

        // Squared deviations from the block's own mean.
        float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
        int at_slot = first_slot;
        #pragma unroll 4
        for (int i = 0; i < PIECES; ++i) {
            const float4* piece = ring + at_slot * PIECE;
            const int n = i < PIECES - 1 ? PIECE : tail;
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int j = tid + k * COMPUTE;
                if (j < n) {
                    const float4 v = piece[j];
                    const float dx = v.x - own_mean, dy = v.y - own_mean, dz = v.z - own_mean, dw = v.w - own_mean;
                    q.x = fmaf(dx, dx, q.x);
                    q.y = fmaf(dy, dy, q.y);
                    q.z = fmaf(dz, dz, q.z);
                    q.w = fmaf(dw, dw, q.w);
                }
            }
            if (++at_slot == SLOTS) at_slot = 0;
        }
        const float square_part = warp_sum((q.x + q.y) + (q.z + q.w));
        if (lane == 0) warp_squares[warp] = square_part;

        const int channel = (group % int(GN_NUM_GROUPS)) * CHANNELS;
        const float weight0 = __ldg(weight + channel + channel0), weight1 = __ldg(weight + channel + channel1);
        const float bias0 = __ldg(bias + channel + channel0), bias1 = __ldg(bias + channel + channel1);
        compute_sync();

        // The team's barrier, and its 44 partial moments in a fixed order.
        if (warp == 0) {
            float2* const of_group = partials + group * TEAM;
            if (lane == 0) {
                float squares = 0.f;
                #pragma unroll
                for (int w = 0; w < WARPS; ++w) squares += warp_squares[w];
                __stcg(of_group + member, make_float2(own_mean, squares));
                __threadfence();
                atomicAdd(counters + group, 1u);
                unsigned arrived;
                do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counters + group) : "memory");
                while (arrived < unsigned(TEAM));
                __threadfence();
            }
            __syncwarp();
            const bool second = lane + 32 < TEAM;
            const float2 a = __ldcg(of_group + lane);
            const float2 b = second ? __ldcg(of_group + lane + 32) : make_float2(0.f, 0.f);
            const float na = float((part_begin(lane + 1) - part_begin(lane)) * 4);
            const float nb = second ? float((part_begin(lane + 33) - part_begin(lane + 32)) * 4) : 0.f;
            constexpr float ONE = 1.0f / (4.0f * float(GROUP4));
            const float mean = warp_sum(fmaf(na, a.x, nb * b.x)) * ONE;
            const float da = a.x - mean, db = b.x - mean;
            const float squares = warp_sum((a.y + na * da * da) + (b.y + nb * db * db));
            if (lane == 0) {
                statistics[0] = mean;
                statistics[1] = 1.0f / sqrtf(squares * ONE + float(GN_EPS));
            }
        }
        compute_sync();
        const float mean = statistics[0], scale = statistics[1];
        const float scale0 = scale * weight0, scale1 = scale * weight1;

        // Normalised in place, piece by piece; a finished piece is handed to the moving thread.
        at_slot = first_slot;
        #pragma unroll 1
        for (int i = 0; i < PIECES; ++i) {
            float4* piece = ring + at_slot * PIECE;
            const int n = i < PIECES - 1 ? PIECE : tail;
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int j = tid + k * COMPUTE;
                if (j < n) {
                    const bool next_channel = i * PIECE + j >= edge;
                    const float w = next_channel ? scale1 : scale0;
                    const float c = next_channel ? bias1 : bias0;
                    float4 v = piece[j];
                    v.x = fmaf(v.x - mean, w, c);
                    v.y = fmaf(v.y - mean, w, c);
                    v.z = fmaf(v.z - mean, w, c);
                    v.w = fmaf(v.w - mean, w, c);
                    piece[j] = v;
                }
            }
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) bar_arrive(at(&done[at_slot]));
            if (++at_slot == SLOTS) at_slot = 0;
        }
    }
}
