#include "problem.h"

// shared_tiling: 64 outputs x 256 pixels (4 rows x 64 columns) a block. Transformed filters take 15 KiB an input channel, so
// that three stages of tile_k = 8 whole channels do not fit shared memory: a stage holds CH channels with all their taps.
// A thread makes 8 channels x 8 pixels (4 tiles of F(2,3), 4 positions: 128 sums). A warp is one group of 8 channels, so
// that its reads of filters are broadcasts; its lanes are 4 rows x 8 groups of 8 pixels. Eight warps only, so that a thread
// may have 255 registers: the first one also fills the ring, which goes on from tile to tile: as many blocks as SMs walk over
// all tiles. Rows of 76 words, and lanes of which 8 neighbours are 2 rows x 4 groups, keep the reads of inputs free of conflicts.

constexpr int IC = int(X_DIM1);
constexpr int OC = int(OUT_DIM1);
constexpr int KH = int(CONV2D_KERNEL_SIZE_0);
constexpr int PARTS = 3;
constexpr int TILE_ROWS = 4, TILE_COLS = 64;
constexpr int IN_ROWS = TILE_ROWS + KH - 1;               // 8
constexpr int IN_COLS = TILE_COLS + 8;                    // 72
constexpr int X_PITCH = IN_COLS + 4;                      // 76 words
constexpr int W_CHANNEL = KH * PARTS * 4 * OC;            // floats of a channel's filters: 3840
constexpr int X_CHANNEL = IN_ROWS * X_PITCH;              // 608
constexpr int STAGE = CH * (W_CHANNEL + X_CHANNEL);       // floats of a stage: filters, then inputs
constexpr int STEPS = IC / CH;
constexpr int COL_TILES = (int(OUT_DIM3) + TILE_COLS - 1) / TILE_COLS;
constexpr int ROW_TILES = int(OUT_DIM2) / TILE_ROWS;
constexpr int TILES = int(X_DIM0) * ROW_TILES * COL_TILES;
constexpr int WARPS = 8;
constexpr int ROUNDS = CH * KH;                           // (channel, filter row) of a stage
static_assert(OC == 64 && KH == 5 && CONV2D_KERNEL_SIZE_1 == 9 && IC % CH == 0, "shape");
static_assert(int(OUT_DIM2) % TILE_ROWS == 0 && int(OUT_DIM3) % 8 == 0, "tiles");

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

// filters: [channel][row][part][position][64 outputs]
extern "C" __global__ void __launch_bounds__(256) transform_filters(const float* __restrict__ weight,
                                                                    float* __restrict__ filters) {
    const int i = int(blockIdx.x) * 256 + int(threadIdx.x);
    if (i >= IC * KH * PARTS * OC) return;
    const int oc = i % OC;
    const int rest = i / OC;                               // (ic * KH + kh) * PARTS + part
    const int part = rest % PARTS;
    const int kh = rest / PARTS % KH;
    const int ic = rest / (PARTS * KH);
    const float* g = weight + oc * int(CONV2D_WEIGHT_STRIDE0) + ic * int(CONV2D_WEIGHT_STRIDE1)
                   + kh * int(CONV2D_WEIGHT_STRIDE2) + part * 3;
    const float g0 = g[0], g1 = g[1], g2 = g[2];
    float* to = filters + rest * 4 * OC + oc;
    to[0] = g0;
    to[OC] = 0.5f * ((g0 + g2) + g1);
    to[2 * OC] = 0.5f * ((g0 + g2) - g1);
    to[3 * OC] = g2;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) conv(const float* __restrict__ x,
                                                                const float* __restrict__ filters,
                                                                float* __restrict__ out) {
    extern __shared__ __align__(128) float ring[];
    __shared__ __align__(8) unsigned long long full_bars[STAGES];
    __shared__ __align__(8) unsigned long long empty_bars[STAGES];

    const int tid = int(threadIdx.x);
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const unsigned full = at(full_bars), empty = at(empty_bars);

    // The last 8 columns of the rows are not copied at the image's right edge; what is computed of them is not stored.
    for (int i = tid; i < STAGES * CH * IN_ROWS * 8; i += WARPS * 32) {
        const int row = i / 8;
        ring[row / (CH * IN_ROWS) * STAGE + CH * W_CHANNEL + row % (CH * IN_ROWS) * X_PITCH + TILE_COLS + i % 8] = 0.f;
    }
    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) {
            bar_init(full + 8u * s, 1u);
            bar_init(empty + 8u * s, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();

    // The first warp: the next step's filters and inputs into stage s.
    int next_tile = int(blockIdx.x), next_step = 0;
    auto fill = [&](int s) {
        const int ct = next_tile % COL_TILES;
        const int rt = next_tile / COL_TILES % ROW_TILES;
        const int n = next_tile / (COL_TILES * ROW_TILES);
        const float* src = x + (n * int(X_STRIDE0) + next_step * CH * int(X_STRIDE1) + rt * TILE_ROWS * int(X_STRIDE2)
                                + ct * TILE_COLS);
        const unsigned row_bytes = unsigned(min(IN_COLS, int(X_DIM3) - ct * TILE_COLS) * 4);
        const unsigned bar = full + 8u * s;
        const unsigned to = at(ring + s * STAGE);
        if (lane == 0) {
            bar_expect(bar, unsigned(CH * W_CHANNEL * 4) + unsigned(CH * IN_ROWS) * row_bytes);
            bulk_load(to, filters + next_step * CH * W_CHANNEL, CH * W_CHANNEL * 4, bar);
        }
        __syncwarp();
        for (int i = lane; i < CH * IN_ROWS; i += 32)
            bulk_load(to + unsigned((CH * W_CHANNEL + i * X_PITCH) * 4),
                      src + i / IN_ROWS * int(X_STRIDE1) + i % IN_ROWS * int(X_STRIDE2), row_bytes, bar);
        __syncwarp();
        if (++next_step == STEPS) { next_step = 0; next_tile += int(gridDim.x); }
    };
    if (warp == 0) {
        #pragma unroll 1
        for (int s = 0; s < STAGES; ++s)
            if (next_tile < TILES) fill(s);
    }

    const int row = ((lane >> 2) & 1) | ((lane >> 4) << 1);      // row of the tile
    const int group = (lane & 3) | (((lane >> 3) & 1) << 2);     // 8 columns of it

    int stage = 0, before = -1;                            // before: stage of the step before, of parity before_parity
    unsigned parity = 0, before_parity = 0;

    for (int tile = int(blockIdx.x); tile < TILES; tile += int(gridDim.x)) {
        float m[4][4][8];                                  // position, tile of 2 outputs, channel
        #pragma unroll
        for (int p = 0; p < 4; ++p)
            #pragma unroll
            for (int t = 0; t < 4; ++t)
                #pragma unroll
                for (int c = 0; c < 8; ++c) m[p][t][c] = 0.f;

        #pragma unroll 1
        for (int step = 0; step < STEPS; ++step) {
            if (warp == 0 && before >= 0 && next_tile < TILES) {
                bar_wait(empty + 8u * before, before_parity);
                fill(before);
            }
            bar_wait(full + 8u * stage, parity);
            const float* w_at = ring + stage * STAGE + warp * 8;
            const float* x_at = ring + stage * STAGE + CH * W_CHANNEL + row * X_PITCH + group * 8;
            float4 q[4];                                   // inputs, read one round ahead
            #pragma unroll
            for (int j = 0; j < 4; ++j) q[j] = *reinterpret_cast<const float4*>(x_at + 4 * j);
            int kh = 0;
            #pragma unroll 1
            for (int round = 0; round < ROUNDS; ++round) {
                float v[16];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    v[4 * j] = q[j].x; v[4 * j + 1] = q[j].y; v[4 * j + 2] = q[j].z; v[4 * j + 3] = q[j].w;
                }
                float skip[14], plus[14], minus[14];       // x[i] - x[i+2], x[i] + x[i+1], x[i+1] - x[i]
                #pragma unroll
                for (int i = 0; i < 14; ++i) {
                    skip[i] = v[i] - v[i + 2];
                    plus[i] = v[i] + v[i + 1];
                    minus[i] = v[i + 1] - v[i];
                }
                x_at += X_PITCH;
                if (++kh == KH) { kh = 0; x_at += X_CHANNEL - KH * X_PITCH; }
                if (round + 1 < ROUNDS) {
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) q[j] = *reinterpret_cast<const float4*>(x_at + 4 * j);
                }
                #pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    #pragma unroll
                    for (int p = 0; p < 4; ++p) {
                        const float4 wa = *reinterpret_cast<const float4*>(w_at + (part * 4 + p) * OC);
                        const float4 wb = *reinterpret_cast<const float4*>(w_at + (part * 4 + p) * OC + 4);
                        const float w[8] = {wa.x, wa.y, wa.z, wa.w, wb.x, wb.y, wb.z, wb.w};
                        #pragma unroll
                        for (int t = 0; t < 4; ++t) {
                            const int i = 2 * t + 3 * part;
                            const float d = p == 0 ? skip[i] : p == 1 ? plus[i + 1] : p == 2 ? minus[i + 1] : skip[i + 1];
                            #pragma unroll
                            for (int c = 0; c < 8; ++c) m[p][t][c] = fmaf(w[c], d, m[p][t][c]);
                        }
                    }
                }
                w_at += PARTS * 4 * OC;
            }
            __syncwarp();
            if (lane == 0) bar_arrive(empty + 8u * stage);
            before = stage;
            before_parity = parity;
            if (++stage == STAGES) { stage = 0; parity ^= 1u; }
        }

        const int ct = tile % COL_TILES;
        const int rt = tile / COL_TILES % ROW_TILES;
        const int n = tile / (COL_TILES * ROW_TILES);
        const int col = ct * TILE_COLS + group * 8;
        if (col < int(OUT_DIM3)) {
            float* to = out + (n * int(OUT_STRIDE0) + warp * 8 * int(OUT_STRIDE1)
                               + (rt * TILE_ROWS + row) * int(OUT_STRIDE2) + col);
            #pragma unroll
            for (int c = 0; c < 8; ++c) {
                float y[8];
                #pragma unroll
                for (int t = 0; t < 4; ++t) {
                    y[2 * t] = m[0][t][c] + (m[1][t][c] + m[2][t][c]);
                    y[2 * t + 1] = (m[1][t][c] - m[2][t][c]) - m[3][t][c];
                }
                __stcs(reinterpret_cast<float4*>(to), make_float4(y[0], y[1], y[2], y[3]));
                __stcs(reinterpret_cast<float4*>(to + 4), make_float4(y[4], y[5], y[6], y[7]));
                to += int(OUT_STRIDE1);
            }
        }
    }
}
