#include "problem.h"

// One-dimensional Winograd F(4,3) along the width; the filter's rows and the channels are a sum of depth 48.
// A persistent block owns a column strip of 128 output pixels (32 tiles) of one image, keeps all transformed filters in
// shared memory and walks down the image two output rows a step, with a ring of 6 transformed input rows.
// The two raw rows of the next step are loaded before, and transformed after, a third of the step's arithmetic each (their
// slots are free all the time): 6 registers instead of 12. Tiles are permuted in the ring so that a thread's vector of 4
// slots holds tiles tg, tg+8, tg+16, tg+24, and neighbouring lanes store neighbouring tiles. Even output rows are aligned
// to 16 bytes and stored so; odd ones are 8 bytes off and are shifted by a pair between lanes, with 8-byte stores at the
// strip's edges.

constexpr int IC = int(X_DIM1), OC = int(OUT_DIM1);
constexpr int H = int(X_DIM2), W = int(X_DIM3);
constexpr int OH = int(OUT_DIM2), OW = int(OUT_DIM3);
constexpr int THREADS = 512;
constexpr int FREQ = 6;
constexpr int DEPTH = IC * 3;
constexpr int STRIP = 128;
constexpr int STRIPS = (OW + STRIP - 1) / STRIP;
constexpr int STEPS = OH / 2;
constexpr int ROWF = IC * FREQ * 32;                  // floats of one transformed row
constexpr int FILT = FREQ * DEPTH * OC;
static_assert(IC == 16 && OC == 128 && OH % 2 == 0 && W % STRIP == 0 && OW == W - 2 && OH == H - 2, "shapes");
static_assert(CONV2D_KERNEL_SIZE_0 == 3 && CONV2D_KERNEL_SIZE_1 == 3, "F(4,3)");

// Points 0, PA, -PA, PB, -PB, inf: much less cancellation than with 1 and 2. Powers are exact in fp32.
constexpr float PA = 0.625f, PB = 1.5f;
constexpr float PA2 = 0.390625f, PB2 = 2.25f;
constexpr float PA3 = 0.244140625f, PB3 = 3.375f;
constexpr float PROD = 0.87890625f, SUM = 2.640625f;  // PA2 * PB2, PA2 + PB2
constexpr float F0 = float(1.0 / 0.87890625);         // 1 / (PA2 PB2)
constexpr float FA = float(-1.0 / (2.0 * 0.390625 * 1.859375));   // 1 / (2 PA2 (PA2 - PB2))
constexpr float FB = float(1.0 / (2.0 * 2.25 * 1.859375));        // 1 / (2 PB2 (PB2 - PA2))
constexpr float FA1 = float(-0.625 / (2.0 * 0.390625 * 1.859375));
constexpr float FB1 = float(1.5 / (2.0 * 2.25 * 1.859375));

__device__ __forceinline__ void put_tile(float* to, const float4 a, const float2 b) {
    // to: slot of this tile in frequency 0; the frequencies are 32 floats apart.
    const float d0 = a.x, d1 = a.y, d2 = a.z, d3 = a.w, d4 = b.x, d5 = b.y;
    const float s = fmaf(-PB2, d2, d4);
    const float t = fmaf(-PB2, d1, d3);
    const float u = fmaf(-PA2, d2, d4);
    const float v = fmaf(-PA2, d1, d3);
    to[0] = fmaf(PROD, d0, fmaf(-SUM, d2, d4));
    to[32] = fmaf(PA, t, s);
    to[64] = fmaf(-PA, t, s);
    to[96] = fmaf(PB, v, u);
    to[128] = fmaf(-PB, v, u);
    to[160] = fmaf(PROD, d1, fmaf(-SUM, d3, d5));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv2d_f43(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    extern __shared__ __align__(128) float smem[];
    float* filt = smem;                                // [freq][ic*3+kh][oc]
    float* ring = smem + FILT;                         // [slot][ic][freq][32 tiles, permuted]

    const int tid = threadIdx.x;
    const int lane = tid & 31, warp = tid >> 5;
    const int strip = int(blockIdx.x) % STRIPS;
    const int n = int(blockIdx.x) / STRIPS;

    // ---- filters, once
    #pragma unroll 2
    for (int i = tid; i < DEPTH * OC; i += THREADS) {
        const int o = i % OC, d = i / OC;
        const float* g = weight + o * int(CONV2D_WEIGHT_STRIDE0) + d * 3;
        const float g0 = g[0], g1 = g[1], g2 = g[2];
        float* f = filt + d * OC + o;
        const float e = fmaf(PA2, g2, g0) * FA, h = g1 * FA1;
        const float q = fmaf(PB2, g2, g0) * FB, r = g1 * FB1;
        f[0] = F0 * g0;
        f[1 * DEPTH * OC] = e + h;
        f[2 * DEPTH * OC] = e - h;
        f[3 * DEPTH * OC] = q + r;
        f[4 * DEPTH * OC] = q - r;
        f[5 * DEPTH * OC] = g2;
    }

    // ---- loader's place: channel = warp, tile = lane
    const int col = strip * STRIP + lane * 4;
    const bool has_tail = col + 4 < W;
    const float* xin = x + (long long)(n * IC + warp) * (H * W) + col;
    float* put = ring + warp * (FREQ * 32) + (lane & 7) * 4 + (lane >> 3);

    #pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float4 a = *reinterpret_cast<const float4*>(xin + r * W);
        const float2 b = has_tail ? *reinterpret_cast<const float2*>(xin + r * W + 4) : make_float2(0.f, 0.f);
        put_tile(put + r * ROWF, a, b);
    }
    xin += 4 * W;
    __syncthreads();

    // ---- multiplier's place
    const int half = warp >> 3;                        // output row of the step
    const int og = lane & 3, tg = lane >> 2;
    const int ocb = (warp & 7) * 16 + og * 4;
    const float* wbase = filt + ocb;
    const float* vbase = ring + tg * 4;
    float* to = out + (long long)(n * OC + ocb) * (OH * OW) + half * OW + strip * STRIP + tg * 4;
    const bool last_strip = strip == STRIPS - 1;

    int r0 = 0;                                        // slot of input row 2 * step
    for (int step = 0; step < STEPS; ++step) {
        float acc[FREQ][4][4];                         // frequency, channel, tile
        #pragma unroll
        for (int f = 0; f < FREQ; ++f)
            #pragma unroll
            for (int j = 0; j < 4; ++j)
                #pragma unroll
                for (int k = 0; k < 4; ++k) acc[f][j][k] = 0.f;

        const bool more = step + 1 < STEPS;
        #pragma unroll 1
        for (int kh = 0; kh < 3; ++kh) {
            const bool fetch = more && kh < 2;
            float4 a = make_float4(0.f, 0.f, 0.f, 0.f);
            float2 b = make_float2(0.f, 0.f);
            if (fetch) {
                a = *reinterpret_cast<const float4*>(xin);
                if (has_tail) b = *reinterpret_cast<const float2*>(xin + 4);
            }
            int slot = r0 + half + kh;
            if (slot >= 6) slot -= 6;
            const float* v = vbase + slot * ROWF;
            const float* w = wbase + kh * OC;
            #pragma unroll 4
            for (int c = 0; c < IC; ++c) {
                #pragma unroll
                for (int f = 0; f < FREQ; ++f) {
                    const float4 wv = *reinterpret_cast<const float4*>(w + f * (DEPTH * OC) + c * (3 * OC));
                    const float4 vv = *reinterpret_cast<const float4*>(v + c * (FREQ * 32) + f * 32);
                    const float ws[4] = {wv.x, wv.y, wv.z, wv.w};
                    const float vs[4] = {vv.x, vv.y, vv.z, vv.w};
                    #pragma unroll
                    for (int j = 0; j < 4; ++j)
                        #pragma unroll
                        for (int k = 0; k < 4; ++k) acc[f][j][k] = fmaf(ws[j], vs[k], acc[f][j][k]);
                }
            }
            if (fetch) {
                int free_slot = r0 + 4 + kh;
                if (free_slot >= 6) free_slot -= 6;
                put_tile(put + free_slot * ROWF, a, b);
                xin += W;
            }
        }

        // ---- inverse transform and stores
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            float* row = to + j * (OH * OW);
            float old2 = 0.f, old3 = 0.f;
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float p = acc[1][j][k] + acc[2][j][k], q = acc[1][j][k] - acc[2][j][k];
                const float r = acc[3][j][k] + acc[4][j][k], s = acc[3][j][k] - acc[4][j][k];
                const float y0 = acc[0][j][k] + p + r;
                const float y1 = fmaf(PB, s, PA * q);
                const float y2 = fmaf(PB2, r, PA2 * p);
                const float y3 = fmaf(PB3, s, fmaf(PA3, q, acc[5][j][k]));
                float* px = row + k * 32;
                const bool last_tile = k == 3 && tg == 7;
                if (half == 0) {                       // the same for a whole warp
                    if (last_tile && last_strip) __stcs(reinterpret_cast<float2*>(px), make_float2(y0, y1));
                    else __stcs(reinterpret_cast<float4*>(px), make_float4(y0, y1, y2, y3));
                } else {
                    // The pair before this tile: the lane to the left has it; for tg 0 it is lane 7's of the last k.
                    const float send2 = tg == 7 ? old2 : y2;
                    const float send3 = tg == 7 ? old3 : y3;
                    const float left2 = __shfl_sync(0xffffffffu, send2, (lane + 28) & 31);
                    const float left3 = __shfl_sync(0xffffffffu, send3, (lane + 28) & 31);
                    if (k == 0 && tg == 0) __stcs(reinterpret_cast<float2*>(px), make_float2(y0, y1));
                    else __stcs(reinterpret_cast<float4*>(px - 2), make_float4(left2, left3, y0, y1));
                    if (last_tile && !last_strip) __stcs(reinterpret_cast<float2*>(px + 2), make_float2(y2, y3));
                    old2 = y2;
                    old3 = y3;
                }
            }
        }
        to += 2 * OW;
        r0 += 2;
        if (r0 >= 6) r0 -= 6;
        __syncthreads();
    }
}
