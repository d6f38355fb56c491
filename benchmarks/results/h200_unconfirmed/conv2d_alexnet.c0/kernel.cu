#include "problem.h"

// Stride-4 11x11 convolution as a stride-1 3x3 one on 3*4*4 = 48 phase channels, by Winograd F(2x2,3x3).
// Channel k = (c*4 + py)*4 + px; a step of the main loop is one (c, py): the 4 channels px = 0..3.

constexpr int THREADS = 256;
constexpr int XI = 16;                    // transform indices, xi = y*4 + x
constexpr int KC = 48;                    // phase channels
constexpr int STEPS = 12;
constexpr int CH = 48;                    // output channels of a block
constexpr int TILES = 64;                 // tiles of a group
constexpr int TILES_ROW = 28;
constexpr int TILES_IMAGE = TILES_ROW * TILES_ROW;
constexpr int GROUPS = int(X_DIM0) * TILES_IMAGE / TILES;
constexpr int H = int(X_DIM2), W = int(X_DIM3);

constexpr int VK = 72;                    // words of one channel's 64 values, padded
constexpr int VX = 4 * VK;                // words of one transform index
constexpr int VBUF = XI * VX;             // 4608 words
constexpr int RROW = 20, RTILE = 84;      // raw patch: 4 rows of 20 words, tiles 84 words apart
constexpr int RBUF = TILES * RTILE;       // 5376 words
constexpr int U_WORDS = XI * KC * CH;     // 36864 words

extern "C" __global__ void __launch_bounds__(256) filter_transform(const float* __restrict__ weight, float* __restrict__ u) {
    const int index = blockIdx.x * 256 + threadIdx.x;
    if (index >= 96 * KC) return;
    const int oc = index % 96, k = index / 96;
    const int px = k & 3, py = (k >> 2) & 3, c = k >> 4;
    float g[3][3];
    #pragma unroll
    for (int a = 0; a < 3; ++a) {
        #pragma unroll
        for (int b = 0; b < 3; ++b) {
            const int r = 4 * a + py, q = 4 * b + px;
            g[a][b] = (r < 11 && q < 11) ? weight[oc * 363 + c * 121 + r * 11 + q] : 0.f;
        }
    }
    float t[4][3];
    #pragma unroll
    for (int b = 0; b < 3; ++b) {
        const float even = g[0][b] + g[2][b];
        t[0][b] = g[0][b];
        t[1][b] = 0.5f * (even + g[1][b]);
        t[2][b] = 0.5f * (even - g[1][b]);
        t[3][b] = g[2][b];
    }
    float* to = u + (oc / CH) * U_WORDS + k * CH + oc % CH;
    #pragma unroll
    for (int y = 0; y < 4; ++y) {
        const float even = t[y][0] + t[y][2];
        to[(y * 4 + 0) * KC * CH] = t[y][0];
        to[(y * 4 + 1) * KC * CH] = 0.5f * (even + t[y][1]);
        to[(y * 4 + 2) * KC * CH] = 0.5f * (even - t[y][1]);
        to[(y * 4 + 3) * KC * CH] = t[y][2];
    }
}

__device__ __forceinline__ unsigned shared_at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void copy16(unsigned to, const float* from, unsigned bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void mac(float (&acc)[8][12], const float* v, const float* u) {
    const float4 a0 = *reinterpret_cast<const float4*>(v);
    const float4 a1 = *reinterpret_cast<const float4*>(v + 32);
    const float4 b0 = *reinterpret_cast<const float4*>(u);
    const float4 b1 = *reinterpret_cast<const float4*>(u + 16);
    const float4 b2 = *reinterpret_cast<const float4*>(u + 32);
    const float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
    const float b[12] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w, b2.x, b2.y, b2.z, b2.w};
    #pragma unroll
    for (int j = 0; j < 12; ++j) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
}

// Raw patch rows of one (tile, px) to B'dB, written to V[xi][px][tile].
__device__ __forceinline__ void input_transform(const float* raw, float* v) {
    float t[4][4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float d0 = raw[0 * RROW + 4 * j], d1 = raw[1 * RROW + 4 * j];
        const float d2 = raw[2 * RROW + 4 * j], d3 = raw[3 * RROW + 4 * j];
        t[0][j] = d0 - d2; t[1][j] = d1 + d2; t[2][j] = d2 - d1; t[3][j] = d1 - d3;
    }
    #pragma unroll
    for (int y = 0; y < 4; ++y) {
        v[(y * 4 + 0) * VX] = t[y][0] - t[y][2];
        v[(y * 4 + 1) * VX] = t[y][1] + t[y][2];
        v[(y * 4 + 2) * VX] = t[y][2] - t[y][1];
        v[(y * 4 + 3) * VX] = t[y][1] - t[y][3];
    }
}

struct Patch { int off, row, tx; };       // what a thread copies: row px of the patch of tile tid/4

__device__ __forceinline__ Patch patch_of(int group, int tile, int i) {
    const int n = group * TILES + tile;
    const int b = n / TILES_IMAGE, r = n % TILES_IMAGE;
    const int ty = r / TILES_ROW, tx = r % TILES_ROW;
    Patch p;
    p.row = 8 * ty + 4 * i - 2;
    p.tx = tx;
    p.off = b * int(X_STRIDE0) + p.row * W + 8 * tx - 4;
    return p;
}

__device__ __forceinline__ void issue(const float* __restrict__ x, const Patch& p, int step, unsigned to) {
    const int c = step >> 2, py = step & 3;
    const bool row = unsigned(p.row + py) < unsigned(H);
    const int off = p.off + c * int(X_STRIDE1) + py * W;
    const bool left = row && p.tx > 0, right = row && p.tx < TILES_ROW - 1;
    copy16(to,      left  ? x + off      : x, left  ? 16u : 0u);
    copy16(to + 16, row   ? x + off + 4  : x, row   ? 16u : 0u);
    copy16(to + 32, row   ? x + off + 8  : x, row   ? 16u : 0u);
    copy16(to + 48, right ? x + off + 12 : x, right ? 16u : 0u);
    copy16(to + 64, right ? x + off + 16 : x, right ? 16u : 0u);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) winograd(const float* __restrict__ x, const float* __restrict__ u,
                                                                   const float* __restrict__ bias, float* __restrict__ out) {
    extern __shared__ __align__(128) float shared[];
    float* const us = shared;
    float* const vs = shared + U_WORDS;
    float* const raw = vs + 2 * VBUF;

    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int half = blockIdx.x & 1;
    const int stride = gridDim.x >> 1;
    int group = blockIdx.x >> 1;
    if (group >= GROUPS) return;

    // Copies and input transform: tile tid/4, phase column (and patch row) tid%4; a tile's four threads share a warp.
    const int px = tid & 3, mine = tid >> 2;
    const unsigned raw_to = shared_at(raw + mine * RTILE + px * RROW);
    const float* const raw_from = raw + mine * RTILE + px + 2;
    float* const v_to = vs + px * VK + mine;

    Patch patch = patch_of(group, mine, px);
    issue(x, patch, 0, raw_to);
    commit();
    issue(x, patch, 1, raw_to + RBUF * 4);
    commit();
    {
        const float4* from = reinterpret_cast<const float4*>(u + half * U_WORDS);
        float4* to = reinterpret_cast<float4*>(us);
        #pragma unroll 6
        for (int i = tid; i < U_WORDS / 4; i += THREADS) to[i] = __ldg(from + i);
    }

    // Products: indices (y, (y+q)%4), so that every scheduler (warp%4) has one of each row and column.
    const int quarter = warp & 3, upper = warp >> 2;
    const int y0 = 2 * upper, y1 = y0 + 1;
    const int x0 = (y0 + quarter) & 3, x1 = (y1 + quarter) & 3;
    const int xi0 = y0 * 4 + x0, xi1 = y1 * 4 + x1;
    const int tg = lane & 7, cg = lane >> 3;
    const float* const va = vs + tg * 4;
    const float* const ub = us + cg * 4;

    bool more = true;                      // is there a group to copy for
    for (; group < GROUPS; group += stride) {
        float acc0[8][12], acc1[8][12];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            #pragma unroll
            for (int j = 0; j < 12; ++j) { acc0[i][j] = 0.f; acc1[i][j] = 0.f; }
        }
        // V of step 0
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncwarp();
        input_transform(raw_from, v_to);
        __syncwarp();
        issue(x, patch, 2, raw_to);
        commit();
        __syncthreads();

        #pragma unroll 1
        for (int s = 0; s < STEPS; ++s) {
            const int buf = s & 1;
            // V of the next step: the lower warps before their products, the upper ones after them.
            auto prepare = [&]() {
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                __syncwarp();
                input_transform(raw_from + (buf ^ 1) * RBUF, v_to + (buf ^ 1) * VBUF);
                __syncwarp();
                int step = s + 3;
                if (step >= STEPS) {
                    step -= STEPS;
                    if (step == 0) {
                        const int next = group + stride;
                        more = next < GROUPS;
                        if (more) patch = patch_of(next, mine, px);
                    }
                }
                if (more) issue(x, patch, step, raw_to + (buf ^ 1) * (RBUF * 4));
                commit();
            };
            if (s < STEPS - 1 && upper == 0) prepare();
            const bool last_phase = (s & 3) == 3;
            const float* const vb = va + buf * VBUF;
            const float* const uk = ub + s * 4 * CH;
            if (!(last_phase && y0 == 3)) {
                const float* v = vb + xi0 * VX;
                const float* f = uk + xi0 * (KC * CH);
                mac(acc0, v, f);
                mac(acc0, v + VK, f + CH);
                mac(acc0, v + 2 * VK, f + 2 * CH);
                if (x0 != 3) mac(acc0, v + 3 * VK, f + 3 * CH);   // there the filter is zero
            }
            if (!(last_phase && y1 == 3)) {
                const float* v = vb + xi1 * VX;
                const float* f = uk + xi1 * (KC * CH);
                mac(acc1, v, f);
                mac(acc1, v + VK, f + CH);
                mac(acc1, v + 2 * VK, f + 2 * CH);
                if (x1 != 3) mac(acc1, v + 3 * VK, f + 3 * CH);
            }
            if (s < STEPS - 1 && upper != 0) prepare();
            __syncthreads();
        }

        // Output: six pieces of 8 channels x 64 tiles x 16 indices go through the V buffers.
        const int tile = tid & 63;
        const int n = group * TILES + tile;
        const int b = n / TILES_IMAGE, r = n % TILES_IMAGE;
        const int ty = r / TILES_ROW, tx = r % TILES_ROW;
        float* const o = out + b * int(OUT_STRIDE0) + half * CH * int(OUT_STRIDE1) + 2 * ty * int(OUT_STRIDE2) + 2 * tx;
        const bool below = ty < TILES_ROW - 1, beside = tx < TILES_ROW - 1;
        #pragma unroll
        for (int p = 0; p < 6; ++p) {
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = 2 * p + e;
                float* s0 = vs + xi0 * 512 + (cg * 2 + e) * 64 + tg * 4;
                float* s1 = vs + xi1 * 512 + (cg * 2 + e) * 64 + tg * 4;
                *reinterpret_cast<float4*>(s0) = make_float4(acc0[0][j], acc0[1][j], acc0[2][j], acc0[3][j]);
                *reinterpret_cast<float4*>(s0 + 32) = make_float4(acc0[4][j], acc0[5][j], acc0[6][j], acc0[7][j]);
                *reinterpret_cast<float4*>(s1) = make_float4(acc1[0][j], acc1[1][j], acc1[2][j], acc1[3][j]);
                *reinterpret_cast<float4*>(s1 + 32) = make_float4(acc1[4][j], acc1[5][j], acc1[6][j], acc1[7][j]);
            }
            __syncthreads();
            #pragma unroll
            for (int it = 0; it < 2; ++it) {
                const int slot = (tid >> 6) + 4 * it;
                const int j = 2 * p + (slot & 1);
                const int ch = 16 * (j >> 2) + 4 * (slot >> 1) + (j & 3);
                const float* m = vs + slot * 64 + tile;
                float r0[4], r1[4];
                #pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const float m0 = m[c * 512], m1 = m[(4 + c) * 512], m2 = m[(8 + c) * 512], m3 = m[(12 + c) * 512];
                    r0[c] = m0 + m1 + m2;
                    r1[c] = m1 - m2 - m3;
                }
                const float add = __ldg(bias + half * CH + ch);
                float* to = o + ch * int(OUT_STRIDE1);
                to[0] = r0[0] + r0[1] + r0[2] + add;
                if (beside) to[1] = r0[1] - r0[2] - r0[3] + add;
                if (below) {
                    to[OUT_STRIDE2] = r1[0] + r1[1] + r1[2] + add;
                    if (beside) to[OUT_STRIDE2 + 1] = r1[1] - r1[2] - r1[3] + add;
                }
            }
            __syncthreads();
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}
