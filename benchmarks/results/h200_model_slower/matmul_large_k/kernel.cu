#include <cuda.h>
#include "problem.h"

// One level of Strassen's scheme: a and out cut in 128 rows, b and out in 128 columns, and the depth within each step of
// 32, whose halves are 16 deep. 11, 12, 21, 22 are quadrants 0, 1, 2, 3.
//   M0 = (A11+A22)(B11+B22)  M1 = (A21+A22) B11  M2 = A11 (B12-B22)  M3 = A22 (B21-B11)
//   M4 = (A11+A12) B22       M5 = (A21-A11)(B11+B12)                 M6 = (A12-A22)(B21+B22)
//   C11 = M0+M3-M4+M6        C12 = M2+M4         C21 = M1+M3         C22 = M0-M1+M2+M5
// 130 blocks, one a multiprocessor. Two groups of 4 warps each multiply one product (128 x 128, 16 x 8 sums a thread) over
// a 37th of the depth: (M2, M4), (M3, M1) and (M0, M6) share their steps' operands; of M5 the groups take two parts.
// The 4 other warps: bulk tensor copies bring raw quadrants two steps ahead; they add them with signs, A's turned k-major,
// into each group's ring of three stages. A second launch adds the parts and combines the products.

constexpr int K = int(A_COLS), N = int(B_COLS);
constexpr int HM = 128, HN = 128;
constexpr int CONSUMERS = 256, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int TK = 16;                                 // depth of a quadrant; a step passes over 2 TK of the operands
constexpr int PITCH = HM + 4;
constexpr int STEPS = K / (2 * TK);
constexpr int PARTS = 37, SLOTS = 38;                  // M5 has a part more: its last one is done by two groups
constexpr int PRODUCTS = 7;
constexpr int RING = 3;
constexpr int STAGE_A = TK * PITCH, STAGE = STAGE_A + TK * HN;         // floats
constexpr int RAW_A = HM * 2 * TK, RAW_B = TK * HN;                    // floats of a half of a's rows, a quadrant of b
constexpr int RAW = 2 * RAW_A + 4 * RAW_B;                             // 64 KiB
constexpr int TILE = HM * HN;
static_assert(int(A_ROWS) == 2 * HM && N == 2 * HN && int(B_ROWS) == K && K % (2 * TK) == 0, "shapes");
static_assert(STEPS / PARTS >= 2, "steps");

// [machine]
__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(void* bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void bar_expect(void* bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(void* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(bar)) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int x, int y, void* bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(at(bar)) : "memory");
}
__device__ __forceinline__ void bar_wait(void* bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory");
    while (!done);
}
__device__ __forceinline__ void producers_meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
template <int COUNT> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }
// [/machine]

// Two bits a product.
constexpr unsigned pack(int p0, int p1, int p2, int p3, int p4, int p5, int p6) {
    return unsigned(p0 | p1 << 2 | p2 << 4 | p3 << 6 | p4 << 8 | p5 << 10 | p6 << 12);
}
__host__ __device__ constexpr int pick(unsigned table, int product) { return int((table >> (2 * product)) & 3u); }

// Signs of the second operand: 0 none, 1 plus, 2 minus.
constexpr unsigned A_FIRST  = pack(0, 2, 0, 3, 0, 2, 1);
constexpr unsigned A_SECOND = pack(3, 3, 0, 3, 1, 0, 3);
constexpr unsigned A_SIGN   = pack(1, 1, 0, 0, 1, 2, 2);
constexpr unsigned B_FIRST  = pack(0, 0, 1, 2, 3, 0, 2);
constexpr unsigned B_SECOND = pack(3, 0, 3, 0, 3, 1, 3);
constexpr unsigned B_SIGN   = pack(1, 0, 2, 2, 0, 1, 1);

__device__ __forceinline__ float4 plus(float4 u, float4 v) { return make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w); }
__device__ __forceinline__ float4 minus(float4 u, float4 v) { return make_float4(u.x - v.x, u.y - v.y, u.z - v.z, u.w - v.w); }
__device__ __forceinline__ float4 get(const float* p) { return *reinterpret_cast<const float4*>(p); }

template <int KIND> struct Kind { static constexpr int value = KIND; };
__host__ __device__ constexpr int product_of(int kind, int g) {
    return g == 0 ? (kind == 0 ? 2 : kind == 1 ? 3 : kind == 2 ? 0 : 5) : (kind == 0 ? 4 : kind == 1 ? 1 : kind == 2 ? 6 : 5);
}

// The copying warps of a block; kinds 0 to 3: (M2, M4), (M3, M1), (M0, M6), (M5, M5).
template <int kind>
__device__ __forceinline__ void produce(float* smem, float* rings, unsigned long long* raw_full, unsigned long long* full,
                                        unsigned long long* empty, const CUtensorMap& map_a, const CUtensorMap& map_b,
                                        int first, int count, int pw, int lane) {
    // What the products need: bits 0, 1 halves of a's rows, bits 2 to 5 quadrants of b.
    constexpr int need = kind == 0 ? 1 | 4 << 1 | 4 << 3 : kind == 1 ? 2 | 4 << 0 | 4 << 2
                   : kind == 2 ? 3 | 4 << 0 | 4 << 2 | 4 << 3 : 3 | 4 << 0 | 4 << 1;
    constexpr unsigned bytes = unsigned(((need & 1) + (need >> 1 & 1)) * RAW_A +
                                    ((need >> 2 & 1) + (need >> 3 & 1) + (need >> 4 & 1) + (need >> 5 & 1)) * RAW_B) * 4u;
    auto bring = [&](int step) {                       // one thread
        float* to = smem + (step & 1) * RAW;
        void* bar = &raw_full[step & 1];
        // Of M5 the groups walk halves of the steps, in turn: in time with the blocks that do these parts of other products.
        const int k = (first + (kind == 3 ? (step >> 1) + (step & 1) * ((count + 1) / 2) : step)) * (2 * TK);
        bar_expect(bar, bytes);
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            if (need >> h & 1) tensor_load(to + h * RAW_A, &map_a, k, h * HM, bar);
        #pragma unroll
        for (int q = 0; q < 4; ++q)
            if (need >> (2 + q) & 1) tensor_load(to + 2 * RAW_A + q * RAW_B, &map_b, (q & 1) * HN, k + (q >> 1) * TK, bar);
    };
    if (pw == 0 && lane == 0) {
        bring(0);
        bring(1);
    }

    // A: a warp turns 32 rows, a lane the 4 depths of chunk q; lanes of depths 8..15 take rows 8 away, so that a store
    // hits all banks; the raw rows' chunks are permuted by the row (chunk c at c ^ (row & 7)).
    const int q = lane & 3, r = (lane >> 2 & 1) << 2 | lane >> 3;
    const int r0 = pw * 32 + r + 8 * (q >> 1), r1 = pw * 32 + r + 8 * ((q >> 1) ^ 1);
    const int low = (q ^ r) * 4, high = ((q ^ r) ^ 4) * 4;   // floats: the row's chunk of the first, the second half
    int stage[2] = {0, 0};
    unsigned parity[2] = {1u, 1u};                     // the first round finds every stage free
    #pragma unroll 1
    for (int step = 0; step < count; ++step) {
        const float* raw = smem + (step & 1) * RAW;
        bar_wait(&raw_full[step & 1], unsigned(step >> 1) & 1u);
        #pragma unroll
        for (int g = 0; g < 2; ++g) {
            if (kind == 3 && (step & 1) != g) continue;
            const int product = product_of(kind, g);
            bar_wait(&empty[g * RING + stage[g]], parity[g]);
            float* to = rings + (g * RING + stage[g]) * STAGE;
            {
                const int q1 = pick(A_FIRST, product), q2 = pick(A_SECOND, product), sign = pick(A_SIGN, product);
                const float* from = raw + (q1 >> 1) * RAW_A + ((q1 & 1) ? high : low);
                float4 f[4];
                #pragma unroll
                for (int i = 0; i < 4; ++i) f[i] = get(from + ((i & 1 ? r1 : r0) + (i >> 1) * 16) * (2 * TK));
                if (sign != 0) {
                    const float* also = raw + (q2 >> 1) * RAW_A + ((q2 & 1) ? high : low);
                    float4 h[4];
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) h[i] = get(also + ((i & 1 ? r1 : r0) + (i >> 1) * 16) * (2 * TK));
                    if (sign == 1) {
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) f[i] = plus(f[i], h[i]);
                    } else {
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) f[i] = minus(f[i], h[i]);
                    }
                }
                float* turned = to + 4 * q * PITCH;
                #pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float* t = turned + (i & 1 ? r1 : r0) + (i >> 1) * 16;
                    t[0] = f[i].x; t[PITCH] = f[i].y; t[2 * PITCH] = f[i].z; t[3 * PITCH] = f[i].w;
                }
            }
            {
                const int q1 = pick(B_FIRST, product), q2 = pick(B_SECOND, product), sign = pick(B_SIGN, product);
                const int place = pw * HN + lane * 4;  // depths pw, pw + 4, pw + 8, pw + 12
                const float* from = raw + 2 * RAW_A + q1 * RAW_B + place;
                float4 f[4];
                #pragma unroll
                for (int i = 0; i < 4; ++i) f[i] = get(from + i * (4 * HN));
                if (sign != 0) {
                    const float* also = raw + 2 * RAW_A + q2 * RAW_B + place;
                    float4 h[4];
                    #pragma unroll
                    for (int i = 0; i < 4; ++i) h[i] = get(also + i * (4 * HN));
                    if (sign == 1) {
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) f[i] = plus(f[i], h[i]);
                    } else {
                        #pragma unroll
                        for (int i = 0; i < 4; ++i) f[i] = minus(f[i], h[i]);
                    }
                }
                #pragma unroll
                for (int i = 0; i < 4; ++i) *reinterpret_cast<float4*>(to + STAGE_A + place + i * (4 * HN)) = f[i];
            }
            __syncwarp();
            if (lane == 0) bar_arrive(&full[g * RING + stage[g]]);
            if (++stage[g] == RING) { stage[g] = 0; parity[g] ^= 1u; }
        }
        producers_meet();                              // the raw step has been read
        if (pw == 0 && lane == 0 && step + 2 < count) bring(step + 2);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
products(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, float* __restrict__ partial) {
    extern __shared__ __align__(1024) float smem[];        // two raw steps, the groups' rings, barriers
    float* const rings = smem + 2 * RAW;
    unsigned long long* const bars = reinterpret_cast<unsigned long long*>(rings + 2 * RING * STAGE);
    unsigned long long* const raw_full = bars;             // [2]
    unsigned long long* const full = bars + 2;             // [group][RING]
    unsigned long long* const empty = bars + 2 + 2 * RING; // [group][RING]

    const int tid = int(threadIdx.x);
    const int warp = tid >> 5, lane = tid & 31;
    const int block = int(blockIdx.x);
    const bool alone = block >= 3 * PARTS;                 // M5
    const int kind = alone ? 3 : block % 3;
    const int part = alone ? (block - 3 * PARTS) * 2 : block / 3;
    const int parts = alone && part + 1 < PARTS ? 2 : 1;
    const int first = int((long long)part * STEPS / PARTS);
    const int count = int((long long)(part + parts) * STEPS / PARTS) - first;

    if (tid == 0) {
        for (int i = 0; i < 2; ++i) bar_init(&raw_full[i], 1);
        for (int i = 0; i < 2 * RING; ++i) {
            bar_init(&full[i], PRODUCERS / 32);
            bar_init(&empty[i], CONSUMERS / 64);
        }
        bar_fence();
    }
    __syncthreads();

    if (warp >= CONSUMERS / 32) {
        fewer_registers<80>();                             // 128 * 80 + 256 * 208 <= 384 * 168
        const int pw = warp - CONSUMERS / 32;
        auto lead = [&](auto of) {
            produce<decltype(of)::value>(smem, rings, raw_full, full, empty, map_a, map_b, first, count, pw, lane);
        };
        if (kind == 0) lead(Kind<0>{});
        else if (kind == 1) lead(Kind<1>{});
        else if (kind == 2) lead(Kind<2>{});
        else lead(Kind<3>{});
        return;
    }

    more_registers<208>();
    // Consumers: a warp makes 64 x 64. Lanes one apart share a's fragment, lanes two apart share b's.
    const int g = warp >> 2;
    const int total = alone ? (count + 1 - g) / 2 : count;
    const int ml = ((lane >> 1) & 1) | ((lane >> 2) & 2);
    const int nl = (lane & 1) | ((lane >> 1) & 2) | ((lane >> 2) & 4);
    const int m0 = (warp & 1) * 64 + ml * 4;               // rows m0..+3, and 16, 32, 48 further
    const int n0 = (warp >> 1 & 1) * 64 + nl * 4;          // columns n0..+3, and 32 further
    const float* const read_a = rings + g * (RING * STAGE) + m0;
    const float* const read_b = rings + g * (RING * STAGE) + STAGE_A + n0;

    float acc[16][8];
    #pragma unroll
    for (int i = 0; i < 16; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;

    bar_wait(&full[g * RING], 0);
    float4 av[4], bv[2];
    #pragma unroll
    for (int i = 0; i < 4; ++i) av[i] = get(read_a + 16 * i);
    #pragma unroll
    for (int j = 0; j < 2; ++j) bv[j] = get(read_b + 32 * j);

    int stage = 0;
    unsigned parity = 0;
    #pragma unroll 1
    for (int s = 0; s < total; ++s) {
        const float* pa = read_a + stage * STAGE;
        const float* pb = read_b + stage * STAGE;
        const int next = stage == RING - 1 ? 0 : stage + 1;
        parity ^= stage == RING - 1 ? 1u : 0u;             // of the next stage
        #pragma unroll
        for (int k = 0; k < TK; ++k) {
            float fa[16], fb[8];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                fa[4 * i] = av[i].x; fa[4 * i + 1] = av[i].y; fa[4 * i + 2] = av[i].z; fa[4 * i + 3] = av[i].w;
            }
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                fb[4 * j] = bv[j].x; fb[4 * j + 1] = bv[j].y; fb[4 * j + 2] = bv[j].z; fb[4 * j + 3] = bv[j].w;
            }
            if (k + 1 < TK) {                              // the next depth's values, while this one multiplies
                #pragma unroll
                for (int i = 0; i < 4; ++i) av[i] = get(pa + (k + 1) * PITCH + 16 * i);
                #pragma unroll
                for (int j = 0; j < 2; ++j) bv[j] = get(pb + (k + 1) * HN + 32 * j);
            } else {                                       // of the next step; after the last one nothing uses them
                if (s + 1 < total) bar_wait(&full[g * RING + next], parity);
                #pragma unroll
                for (int i = 0; i < 4; ++i) av[i] = get(read_a + next * STAGE + 16 * i);
                #pragma unroll
                for (int j = 0; j < 2; ++j) bv[j] = get(read_b + next * STAGE + 32 * j);
            }
            #pragma unroll
            for (int i = 0; i < 16; ++i)
                #pragma unroll
                for (int jj = 0; jj < 8; ++jj) {
                    const int j = (i & 1) ? 7 - jj : jj;
                    acc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);
                }
        }
        __syncwarp();
        if (lane == 0) bar_arrive(&empty[g * RING + stage]);
        stage = next;
    }

    const int product = product_of(kind, g);
    float* to = partial + (product * SLOTS + part + (alone ? g : 0)) * TILE + m0 * HN + n0;
    #pragma unroll
    for (int i = 0; i < 16; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float4*>(to + ((i & 3) + (i >> 2) * 16) * HN + h * 32) =
                make_float4(acc[i][4 * h], acc[i][4 * h + 1], acc[i][4 * h + 2], acc[i][4 * h + 3]);
}

// A block makes 32 places of all four quadrants: a warp adds one product's parts, then four warps combine.
extern "C" __global__ void __launch_bounds__(PRODUCTS * 32)
combine(const float* __restrict__ partial, float* __restrict__ out) {
    __shared__ float sums[PRODUCTS][32];
    const int warp = int(threadIdx.x) >> 5;
    const int lane = int(threadIdx.x) & 31;
    const int place = int(blockIdx.x) * 32 + lane;

    const float* from = partial + warp * (SLOTS * TILE) + place;
    float u = 0.f, v = 0.f;
    #pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const float value = __ldg(from + i * TILE);
        if (i & 1) v += value;
        else u += value;
    }
    if (warp == 5) v += __ldg(from + PARTS * TILE);
    sums[warp][lane] = u + v;
    __syncthreads();

    if (warp < 4) {
        float result;
        if (warp == 0) result = (sums[0][lane] + sums[3][lane]) + (sums[6][lane] - sums[4][lane]);
        else if (warp == 1) result = sums[2][lane] + sums[4][lane];
        else if (warp == 2) result = sums[1][lane] + sums[3][lane];
        else result = (sums[0][lane] - sums[1][lane]) + (sums[2][lane] + sums[5][lane]);
        const int row = place / HN + (warp >> 1) * HM;
        const int col = place % HN + (warp & 1) * HN;
        out[row * N + col] = result;
    }
}
