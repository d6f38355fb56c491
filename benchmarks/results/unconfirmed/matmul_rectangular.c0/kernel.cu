#include "problem.h"

// out = a * b by two levels of Strassen: M, K and N are cut in 4, 49 products of 512 x 1024 x 2048.
// 1. sums_a, sums_b: all 49 signed sums of the 16 sub-blocks, k-major, in pieces of 16 k x 128 rows or columns (8 KiB).
// 2. products: a block makes a tile of 128 x 128 of one product, fed by bulk copies; sums are banked every 256 of depth.
// 3. combine: the 49 products with their signs into the 16 sub-blocks of out.

constexpr int M = int(A_DIM0), N = int(B_DIM1), K = int(A_DIM1);
constexpr int MQ = M / 4, NQ = N / 4, KQ = K / 4;    // 512, 1024, 2048
constexpr int TILE = 128, DEPTH = 16;
constexpr int PIECE = DEPTH * TILE;                  // 2048 floats, 8 KiB
constexpr int STEPS = KQ / DEPTH;                    // 128
constexpr int PANEL = STEPS * PIECE;                 // floats of a panel: KQ x 128
constexpr int PANELS_A = MQ / TILE, PANELS_B = NQ / TILE;
constexpr int STAGES = 3;
constexpr int CHUNK_STEPS = 256 / DEPTH;             // 16
constexpr int CHUNKS = STEPS / CHUNK_STEPS;          // 8
constexpr int THREADS = 256;
static_assert(M % 512 == 0 && N % 512 == 0 && K % 1024 == 0 && int(B_DIM0) == K, "tiles divide");
static_assert(STEPS % CHUNK_STEPS == 0 && STEPS > STAGES, "chunks divide");

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

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float4 minus(float4 a, float4 b) { return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }

// Strassen's operand sums, one level. A's quarters are [row][k], B's are [k][column].
template <bool IS_B>
__device__ __forceinline__ float4 operand(int p, float4 q00, float4 q01, float4 q10, float4 q11) {
    if (!IS_B) {
        switch (p) {
            case 0: return plus(q00, q11);
            case 1: return plus(q10, q11);
            case 2: return q00;
            case 3: return q11;
            case 4: return plus(q00, q01);
            case 5: return minus(q10, q00);
            default: return minus(q01, q11);
        }
    } else {
        switch (p) {
            case 0: return plus(q00, q11);
            case 1: return q00;
            case 2: return minus(q01, q11);
            case 3: return minus(q10, q00);
            case 4: return q11;
            case 5: return plus(q00, q01);
            default: return plus(q10, q11);
        }
    }
}

// A block: 32 rows x 32 k of all 16 sub-blocks of a, all 49 sums to panels, turned k-major.
extern "C" __global__ void __launch_bounds__(THREADS, 2) sums_a(const float* __restrict__ a, float* __restrict__ panels_a) {
    __shared__ float turn[7][32][33];
    const int tid = threadIdx.x;
    const int row0 = int(blockIdx.y) * 32, k0 = int(blockIdx.x) * 32;
    const int r = tid >> 3, kq = (tid & 7) * 4;

    float4 v[4][4];                                  // [row][k]
    const float* from = a + (row0 + r) * K + k0 + kq;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) v[i][j] = __ldcs(reinterpret_cast<const float4*>(from + i * (MQ * K) + j * KQ));
    }

    const int kk = tid >> 3, rq = (tid & 7) * 4;     // what the thread writes
    float* to = panels_a + (row0 / TILE) * PANEL + ((k0 + kk) / DEPTH) * PIECE + ((k0 + kk) % DEPTH) * TILE + row0 % TILE + rq;

    #pragma unroll
    for (int p1 = 0; p1 < 7; ++p1) {
        float4 t[2][2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            #pragma unroll
            for (int j = 0; j < 2; ++j) t[i][j] = operand<false>(p1, v[i][j], v[i][2 + j], v[2 + i][j], v[2 + i][2 + j]);
        }
        #pragma unroll
        for (int p2 = 0; p2 < 7; ++p2) {
            const float4 s = operand<false>(p2, t[0][0], t[0][1], t[1][0], t[1][1]);
            turn[p2][kq][r] = s.x;
            turn[p2][kq + 1][r] = s.y;
            turn[p2][kq + 2][r] = s.z;
            turn[p2][kq + 3][r] = s.w;
        }
        __syncthreads();
        #pragma unroll
        for (int p2 = 0; p2 < 7; ++p2) {
            const float* s = &turn[p2][kk][rq];
            *reinterpret_cast<float4*>(to + (p1 * 7 + p2) * (MQ * KQ)) = make_float4(s[0], s[1], s[2], s[3]);
        }
        __syncthreads();
    }
}

// A block: 8 k x 128 columns of all 16 sub-blocks of b, which is k-major already.
extern "C" __global__ void __launch_bounds__(THREADS, 2) sums_b(const float* __restrict__ b, float* __restrict__ panels_b) {
    const int tid = threadIdx.x;
    const int k = int(blockIdx.y) * (THREADS / 32) + (tid >> 5), c = (tid & 31) * 4;

    float4 v[4][4];                                  // [k][column]
    const float* from = b + k * N + int(blockIdx.x) * TILE + c;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j) v[i][j] = __ldcs(reinterpret_cast<const float4*>(from + i * (KQ * N) + j * NQ));
    }

    float* to = panels_b + int(blockIdx.x) * PANEL + (k / DEPTH) * PIECE + (k % DEPTH) * TILE + c;
    #pragma unroll
    for (int p1 = 0; p1 < 7; ++p1) {
        float4 t[2][2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            #pragma unroll
            for (int j = 0; j < 2; ++j) t[i][j] = operand<true>(p1, v[i][j], v[i][2 + j], v[2 + i][j], v[2 + i][2 + j]);
        }
        #pragma unroll
        for (int p2 = 0; p2 < 7; ++p2)
            *reinterpret_cast<float4*>(to + (p1 * 7 + p2) * (NQ * KQ)) = operand<true>(p2, t[0][0], t[0][1], t[1][0], t[1][1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
products(const float* __restrict__ panels_a, const float* __restrict__ panels_b, float* __restrict__ prod) {
    extern __shared__ __align__(128) float smem[];
    __shared__ __align__(8) unsigned long long full[STAGES];
    __shared__ __align__(8) unsigned long long empty[STAGES];
    float4* bank = reinterpret_cast<float4*>(smem + STAGES * 2 * PIECE);   // [16][THREADS]

    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int p = int(blockIdx.x) / (PANELS_A * PANELS_B);
    const int tile = int(blockIdx.x) % (PANELS_A * PANELS_B);
    const int tile_m = tile % PANELS_A, tile_n = tile / PANELS_A;
    const float* from_a = panels_a + (p * PANELS_A + tile_m) * PANEL;
    const float* from_b = panels_b + (p * PANELS_B + tile_n) * PANEL;

    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) {
            bar_init(at(&full[s]), 1);
            bar_init(at(&empty[s]), THREADS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        for (int s = 0; s < STAGES; ++s) {
            bar_expect(at(&full[s]), 2 * PIECE * 4);
            bulk_load(at(smem + s * 2 * PIECE), from_a, PIECE * 4, at(&full[s]));
            bulk_load(at(smem + s * 2 * PIECE + PIECE), from_b, PIECE * 4, at(&full[s]));
            from_a += PIECE;
            from_b += PIECE;
        }
    }
    __syncthreads();

    const int row = ((warp >> 1) * 4 + (lane >> 3)) * 4;   // and 64 further
    const int col = ((warp & 1) * 8 + (lane & 7)) * 4;     // and 64 further

    float acc[8][8];
    int stage = 0, s = 0;
    unsigned phase = 0;

    #pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            #pragma unroll
            for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;

        #pragma unroll 1
        for (int step = 0; step < CHUNK_STEPS; ++step, ++s) {
            bar_wait(at(&full[stage]), phase);
            const float* pa = smem + stage * (2 * PIECE) + row;
            const float* pb = smem + stage * (2 * PIECE) + PIECE + col;
            float4 a0 = *reinterpret_cast<const float4*>(pa);
            float4 a1 = *reinterpret_cast<const float4*>(pa + 64);
            float4 b0 = *reinterpret_cast<const float4*>(pb);
            float4 b1 = *reinterpret_cast<const float4*>(pb + 64);
            #pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                const float fa[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
                const float fb[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
                if (k + 1 < DEPTH) {                       // fragments of the next k, while this one multiplies
                    a0 = *reinterpret_cast<const float4*>(pa + (k + 1) * TILE);
                    a1 = *reinterpret_cast<const float4*>(pa + (k + 1) * TILE + 64);
                    b0 = *reinterpret_cast<const float4*>(pb + (k + 1) * TILE);
                    b1 = *reinterpret_cast<const float4*>(pb + (k + 1) * TILE + 64);
                }
                #pragma unroll
                for (int i = 0; i < 8; ++i) {
                    #pragma unroll
                    for (int jj = 0; jj < 8; ++jj) {
                        const int j = i & 1 ? 7 - jj : jj;
                        acc[i][j] = fmaf(fa[i], fb[j], acc[i][j]);
                    }
                }
            }
            __syncwarp();
            if (lane == 0) bar_arrive(at(&empty[stage]));
            if (tid == 0 && s >= 1 && s + STAGES - 1 < STEPS) {   // refill the stage of the step before
                const int old = stage == 0 ? STAGES - 1 : stage - 1;
                bar_wait(at(&empty[old]), stage == 0 ? phase ^ 1u : phase);
                bar_expect(at(&full[old]), 2 * PIECE * 4);
                bulk_load(at(smem + old * 2 * PIECE), from_a, PIECE * 4, at(&full[old]));
                bulk_load(at(smem + old * 2 * PIECE + PIECE), from_b, PIECE * 4, at(&full[old]));
                from_a += PIECE;
                from_b += PIECE;
            }
            __syncwarp();
            if (++stage == STAGES) { stage = 0; phase ^= 1u; }
        }

        if (chunk + 1 < CHUNKS) {                          // the thread's own places: no barrier
            #pragma unroll
            for (int q = 0; q < 16; ++q) {
                float4 v = make_float4(acc[q / 2][q % 2 * 4], acc[q / 2][q % 2 * 4 + 1], acc[q / 2][q % 2 * 4 + 2],
                                       acc[q / 2][q % 2 * 4 + 3]);
                if (chunk > 0) v = plus(bank[q * THREADS + tid], v);
                bank[q * THREADS + tid] = v;
            }
        }
    }

    float* to = prod + p * (MQ * NQ) + (tile_m * TILE + row) * NQ + tile_n * TILE + col;
    #pragma unroll
    for (int q = 0; q < 16; ++q) {
        const int i = q / 2;
        const float4 v = make_float4(acc[i][q % 2 * 4], acc[i][q % 2 * 4 + 1], acc[i][q % 2 * 4 + 2], acc[i][q % 2 * 4 + 3]);
        *reinterpret_cast<float4*>(to + ((i & 3) + (i >> 2) * 64) * NQ + q % 2 * 64) = plus(bank[q * THREADS + tid], v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) combine(const float* __restrict__ prod, float* __restrict__ out) {
    const int index = int(blockIdx.x) * THREADS + int(threadIdx.x);
    const int r = index / (NQ / 4), c = index % (NQ / 4) * 4;
    const float* from = prod + r * NQ + c;

    const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 sum[2][2][2][2];                                // [outer row][outer column][inner row][inner column]
    #pragma unroll
    for (int q = 0; q < 16; ++q) sum[q >> 3][(q >> 2) & 1][(q >> 1) & 1][q & 1] = zero;

    #pragma unroll
    for (int p1 = 0; p1 < 7; ++p1) {
        float4 m[7];
        #pragma unroll
        for (int p2 = 0; p2 < 7; ++p2) m[p2] = __ldcs(reinterpret_cast<const float4*>(from + (p1 * 7 + p2) * (MQ * NQ)));
        float4 d[2][2];
        d[0][0] = plus(minus(plus(m[0], m[3]), m[4]), m[6]);
        d[0][1] = plus(m[2], m[4]);
        d[1][0] = plus(m[1], m[3]);
        d[1][1] = plus(plus(minus(m[0], m[1]), m[2]), m[5]);
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            #pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (p1 == 0 || p1 == 3 || p1 == 6) sum[0][0][i][j] = plus(sum[0][0][i][j], d[i][j]);
                if (p1 == 4) sum[0][0][i][j] = minus(sum[0][0][i][j], d[i][j]);
                if (p1 == 2 || p1 == 4) sum[0][1][i][j] = plus(sum[0][1][i][j], d[i][j]);
                if (p1 == 1 || p1 == 3) sum[1][0][i][j] = plus(sum[1][0][i][j], d[i][j]);
                if (p1 == 0 || p1 == 2 || p1 == 5) sum[1][1][i][j] = plus(sum[1][1][i][j], d[i][j]);
                if (p1 == 1) sum[1][1][i][j] = minus(sum[1][1][i][j], d[i][j]);
            }
        }
    }

    float* to = out + r * N + c;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int j = 0; j < 4; ++j)
            __stcs(reinterpret_cast<float4*>(to + i * (MQ * N) + j * NQ), sum[i >> 1][j >> 1][i & 1][j & 1]);
    }
}
