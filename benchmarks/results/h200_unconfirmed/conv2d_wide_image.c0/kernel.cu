#include "problem.h"

// 3x3 convolution by F(2x2, 3x3) Winograd, fused: a block makes 64 output channels of 32 neighbouring tiles (2 x 2 outputs).
// 16 threads own each of the 16 transformed positions with 16 channels x 8 tiles of sums each.
// double_buffering: inputs are read into registers while the current step is multiplied, transformed, and stored to the
// second buffers; the transformed filters, which would take 32 more registers, get there by one bulk copy a step instead.
// Blocks are persistent, so that the first step of the next item is on its way during the output of the current one.

constexpr int THREADS = 256;
constexpr int CIN = int(X_DIM1);
constexpr int COUT = int(OUT_DIM1);
constexpr int TK = 8;                              // input channels of a step
constexpr int STEPS = CIN / TK;                    // 8
constexpr int TILES_X = int(OUT_DIM3) / 2;         // 511
constexpr int TILES_Y = int(OUT_DIM2) / 2;         // 255
constexpr int BLOCKS_X = (TILES_X + 31) / 32;      // 16
constexpr int HALVES = COUT / 64;                  // 2
constexpr int ITEMS = int(X_DIM0) * TILES_Y * BLOCKS_X * HALVES;
// Positions of one channel: the even ones, then 16 words of padding, then the odd ones, so that the two positions of a
// warp lie in different halves of the banks.
constexpr int U_ODD = 8 * 64 + 16;
constexpr int U_CH = 16 * 64 + 16;                 // 1040
constexpr int V_ODD = 8 * 32 + 16;
constexpr int V_CH = 16 * 32 + 16;                 // 528
constexpr int STAGE = TK * (U_CH + V_CH);          // floats of a stage
constexpr int U_BYTES = TK * U_CH * 4;
constexpr int EP_ROW = 40;
constexpr int EP_POS = 16 * EP_ROW;
constexpr int EP = 16 * EP_POS;                    // floats of one output buffer: 16 channels of all positions
static_assert(STEPS % 2 == 0 && CIN == 64 && COUT == 128, "shape");
static_assert(OUT_DIM2 % 2 == 0 && OUT_DIM3 % 2 == 0, "whole tiles");

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

// u[half][ci][position layout][64] = G g G^T
extern "C" __global__ void __launch_bounds__(THREADS) transform_filters(const float* __restrict__ w, float* __restrict__ u) {
    const int idx = int(blockIdx.x) * THREADS + int(threadIdx.x);
    if (idx >= CIN * COUT) return;
    const int co = idx % COUT;
    const int ci = idx / COUT;
    const float* g = w + co * int(CONV2D_WEIGHT_STRIDE0) + ci * int(CONV2D_WEIGHT_STRIDE1);
    float t[4][3];
    #pragma unroll
    for (int j = 0; j < 3; ++j) {
        const float g0 = g[j], g1 = g[3 + j], g2 = g[6 + j];
        t[0][j] = g0;
        t[1][j] = 0.5f * (g0 + g2 + g1);
        t[2][j] = 0.5f * (g0 + g2 - g1);
        t[3][j] = g2;
    }
    float* to = u + ((co / 64) * CIN + ci) * U_CH;
    const int lane = co % 64;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float s = t[i][0] + t[i][2];
        const float q[4] = {t[i][0], 0.5f * (s + t[i][1]), 0.5f * (s - t[i][1]), t[i][2]};
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int pos = 4 * i + j;
            to[(pos >> 1) * 64 + (pos & 1) * U_ODD + lane] = q[j];
        }
    }
    if (lane < 16) to[8 * 64 + lane] = 0.f;        // the padding is copied too
}

struct Place { int half, n, ty, tx0; };
__device__ __forceinline__ Place place_of(int item) {
    Place p;
    p.half = item % HALVES;
    const int b = item / HALVES;
    p.tx0 = (b % BLOCKS_X) * 32;
    const int rest = b / BLOCKS_X;
    p.ty = rest % TILES_Y;
    p.n = rest / TILES_Y;
    return p;
}
// This thread's input tile of channel `warp`: beyond the last tile the last one is read again and not stored.
__device__ __forceinline__ int input_offset(const Place& p, int warp, int lane) {
    int tx = p.tx0 + lane;
    tx = tx < TILES_X ? tx : TILES_X - 1;
    return p.n * int(X_STRIDE0) + warp * int(X_STRIDE1) + 2 * p.ty * int(X_STRIDE2) + 2 * tx;
}
__device__ __forceinline__ void read_tile(float (&d)[4][4], const float* __restrict__ from) {
    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float2 a = __ldg(reinterpret_cast<const float2*>(from + r * int(X_STRIDE2)));
        const float2 b = __ldg(reinterpret_cast<const float2*>(from + r * int(X_STRIDE2) + 2));
        d[r][0] = a.x; d[r][1] = a.y; d[r][2] = b.x; d[r][3] = b.y;
    }
}
__device__ __forceinline__ void store_transformed(const float (&d)[4][4], float* to) {  // to: channel and tile added
    float t[4][4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        t[0][j] = d[0][j] - d[2][j];
        t[1][j] = d[1][j] + d[2][j];
        t[2][j] = d[2][j] - d[1][j];
        t[3][j] = d[1][j] - d[3][j];
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[(2 * i) * 32] = t[i][0] - t[i][2];              // position 4 i
        to[(2 * i) * 32 + V_ODD] = t[i][1] + t[i][2];      // 4 i + 1
        to[(2 * i + 1) * 32] = t[i][2] - t[i][1];          // 4 i + 2
        to[(2 * i + 1) * 32 + V_ODD] = t[i][1] - t[i][3];  // 4 i + 3
    }
}
__device__ __forceinline__ void read_fragments(float (&uf)[16], float (&vf)[8], const float* us, const float* vs) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 q = *reinterpret_cast<const float4*>(us + i * 16);
        uf[4 * i] = q.x; uf[4 * i + 1] = q.y; uf[4 * i + 2] = q.z; uf[4 * i + 3] = q.w;
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float4 q = *reinterpret_cast<const float4*>(vs + h * 16);
        vf[4 * h] = q.x; vf[4 * h + 1] = q.y; vf[4 * h + 2] = q.z; vf[4 * h + 3] = q.w;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
winograd_conv(const float* __restrict__ x, const float* __restrict__ u, float* __restrict__ out) {
    extern __shared__ __align__(128) float smem[];
    __shared__ __align__(8) unsigned long long bars[2];
    const int tid = int(threadIdx.x);
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int a = lane & 3;                        // channels 16 i + 4 a + e
    const int b = (lane >> 2) & 3;                 // tiles 16 h + 4 b + f
    const int odd = lane >> 4;                     // position 2 warp + odd
    const int u_at = warp * 64 + odd * U_ODD + 4 * a;
    const int v_at = TK * U_CH + warp * 32 + odd * V_ODD + 4 * b;
    const int v_to = TK * U_CH + warp * V_CH + lane;   // transforming: channel `warp` of the step, tile `lane`
    float* const ep = smem + 2 * STAGE;
    const unsigned bar0 = at(&bars[0]);

    int item = int(blockIdx.x);
    if (item >= ITEMS) return;
    if (tid == 0) {
        bar_init(bar0, 1);
        bar_init(bar0 + 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    Place here = place_of(item);
    int x_here = input_offset(here, warp, lane);
    {
        float d[4][4];
        read_tile(d, x + x_here);
        store_transformed(d, smem + v_to);
    }
    __syncthreads();
    if (tid == 0) {
        bar_expect(bar0, U_BYTES);
        bulk_load(at(smem), u + here.half * CIN * U_CH, U_BYTES, bar0);
    }

    unsigned count = 0;                            // steps done, of all items
    for (; item < ITEMS; item += BLOCKS) {
        const bool last_item = item + BLOCKS >= ITEMS;
        const Place next = place_of(last_item ? item : item + BLOCKS);
        const int x_next = input_offset(next, warp, lane);

        float acc[4][4][8];
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            #pragma unroll
            for (int e = 0; e < 4; ++e)
                #pragma unroll
                for (int f = 0; f < 8; ++f) acc[i][e][f] = 0.f;

        #pragma unroll 1
        for (int step = 0; step < STEPS; ++step) {
            const int cur = step & 1;
            float* const now = smem + cur * STAGE;
            float* const then = smem + (cur ^ 1) * STAGE;
            const bool wraps = step + 1 == STEPS;
            const bool more = !(wraps && last_item);
            float d[4][4];
            if (more) {
                const int nstep = wraps ? 0 : step + 1;
                read_tile(d, x + ((wraps ? x_next : x_here) + nstep * TK * int(X_STRIDE1)));
                if (tid == 0) {
                    const unsigned bar = bar0 + 8u * unsigned(cur ^ 1);
                    bar_expect(bar, U_BYTES);
                    bulk_load(at(then), u + ((wraps ? next.half : here.half) * CIN + nstep * TK) * U_CH, U_BYTES, bar);
                }
            }
            bar_wait(bar0 + 8u * unsigned(cur), (count >> 1) & 1u);

            const float* us = now + u_at;
            const float* vs = now + v_at;
            float uf[2][16], vf[2][8];
            read_fragments(uf[0], vf[0], us, vs);
            #pragma unroll
            for (int c = 0; c < TK; ++c) {
                if (c + 1 < TK) read_fragments(uf[(c + 1) & 1], vf[(c + 1) & 1], us + (c + 1) * U_CH, vs + (c + 1) * V_CH);
                #pragma unroll
                for (int i = 0; i < 4; ++i)
                    #pragma unroll
                    for (int e = 0; e < 4; ++e)
                        #pragma unroll
                        for (int f = 0; f < 8; ++f)
                            acc[i][e][f] = fmaf(uf[c & 1][4 * i + e], vf[c & 1][f], acc[i][e][f]);
            }
            if (more) store_transformed(d, then + v_to);
            ++count;
            __syncthreads();
        }

        // Inverse transform, 16 channels at a time through alternating buffers: [position][e * 4 + a][tile].
        const int tx = here.tx0 + lane;
        float* const to0 = out + (here.n * int(OUT_STRIDE0) + here.half * 64 * int(OUT_STRIDE1)
                                  + 2 * here.ty * int(OUT_STRIDE2) + 2 * tx);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            float* const buffer = ep + (i & 1) * EP;
            float* const mine = buffer + (2 * warp + odd) * EP_POS + a * EP_ROW + 4 * b;
            #pragma unroll
            for (int e = 0; e < 4; ++e)
                #pragma unroll
                for (int h = 0; h < 2; ++h)
                    *reinterpret_cast<float4*>(mine + e * 4 * EP_ROW + h * 16) =
                        make_float4(acc[i][e][4 * h], acc[i][e][4 * h + 1], acc[i][e][4 * h + 2], acc[i][e][4 * h + 3]);
            __syncthreads();
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int row = warp + 8 * k;      // e = row / 4, a = row % 4
                const int co = i * 16 + (row & 3) * 4 + (row >> 2);
                const float* from = buffer + row * EP_ROW + lane;
                float s0[4], s1[4];
                #pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float m0 = from[j * EP_POS];
                    const float m1 = from[(4 + j) * EP_POS];
                    const float m2 = from[(8 + j) * EP_POS];
                    const float m3 = from[(12 + j) * EP_POS];
                    s0[j] = m0 + m1 + m2;
                    s1[j] = m1 - m2 - m3;
                }
                if (tx < TILES_X) {
                    float* to = to0 + co * int(OUT_STRIDE1);
                    __stcs(reinterpret_cast<float2*>(to), make_float2(s0[0] + s0[1] + s0[2], s0[1] - s0[2] - s0[3]));
                    __stcs(reinterpret_cast<float2*>(to + int(OUT_STRIDE2)),
                           make_float2(s1[0] + s1[1] + s1[2], s1[1] - s1[2] - s1[3]));
                }
            }
        }
        here = next;
        x_here = x_next;
    }
}
