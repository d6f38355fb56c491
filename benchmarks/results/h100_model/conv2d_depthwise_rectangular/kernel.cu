#include "problem.h"

// 64 lanes own the 256 columns of one strip of one plane, four columns each, and walk down its rows. A rolling buffer holds
// the thread's own float4 of the next four rows; the six columns to the right come from two more vector loads of the same
// row (L1 hits), issued one row ahead. ROWS divides 126 and ROWS + 2 is a multiple of 4, so that there are no ragged steps.
// WIDE_STORES = 0 stores as the strategy says; 1 (tried by the tuner) uses that even rows begin at a multiple of 16 bytes and
// odd rows 8 bytes beside one: even rows leave as float4, odd rows as float4 shifted by two columns (two shuffles).

constexpr int LANES = int(X_COLS) / 4;             // 64
constexpr int IN_W = int(X_STRIDE2);
constexpr int OUT_W = int(OUT_DIM3);
constexpr int STRIPS = int(OUT_DIM2) / ROWS;
constexpr int STEPS = (ROWS + 2) / 4;
constexpr int UNITS = BLOCK / LANES;               // strips that a block handles side by side
constexpr int CHANNELS = int(X_DIM1);
static_assert(int(OUT_DIM2) % ROWS == 0 && (ROWS + 2) % 4 == 0 && ROWS % 2 == 0, "whole steps only");
static_assert(CONV2D_KERNEL_SIZE_0 == 3 && CONV2D_KERNEL_SIZE_1 == 7, "taps");
static_assert(OUT_W % 4 == 2 && OUT_W == IN_W - 6, "row ends");
static_assert((int(X_DIM0) * CHANNELS * STRIPS) % UNITS == 0, "whole blocks");

__device__ __forceinline__ void tap_row(float (&sum)[4], const float (&in)[10], const float* w) {
    #pragma unroll
    for (int t = 0; t < 7; ++t) {
        #pragma unroll
        for (int c = 0; c < 4; ++c) sum[c] = fmaf(w[t], in[c + t], sum[c]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 768 / BLOCK)
depthwise_3x7(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    const int unit = int(blockIdx.x) * UNITS + int(threadIdx.x) / LANES;
    const int c = int(threadIdx.x) % LANES;        // float4 column
    const int lane = int(threadIdx.x) & 31;
    const int plane = unit / STRIPS;
    const int strip = unit - plane * STRIPS;
    const int channel = plane % CHANNELS;

    const float* row0 = x + (long long)plane * X_STRIDE1 + strip * (ROWS * IN_W);
    const float* own = row0 + 4 * c;
    const float* right = row0 + 4 * min(c + 1, LANES - 1);
    const float* far = row0 + 4 * min(c + 2, LANES - 1);
    float* dst = out + (long long)plane * OUT_STRIDE1 + strip * (ROWS * OUT_W) + 4 * c;

    float4 v[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldg(reinterpret_cast<const float4*>(own + j * IN_W));

    float w[21];
    #pragma unroll
    for (int t = 0; t < 21; ++t) w[t] = __ldg(weight + channel * int(CONV2D_WEIGHT_STRIDE0) + t);

    float4 r_next = __ldg(reinterpret_cast<const float4*>(right));
    float2 f_next = __ldg(reinterpret_cast<const float2*>(far));

    float a[4] = {0.f, 0.f, 0.f, 0.f};             // output row i - 2: two of its three rows are in
    float b[4] = {0.f, 0.f, 0.f, 0.f};             // output row i - 1: one of its three rows is in

    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const bool more = step + 1 < STEPS;
        #pragma unroll
        for (int j = 0; j < 4; ++j) {              // input row i = 4 * step + j
            const float in[10] = {v[j].x, v[j].y, v[j].z, v[j].w, r_next.x, r_next.y, r_next.z, r_next.w, f_next.x, f_next.y};
            if (more) v[j] = __ldg(reinterpret_cast<const float4*>(own + (j + 4) * IN_W));
            if (j < 3 || more) {
                r_next = __ldg(reinterpret_cast<const float4*>(right + (j + 1) * IN_W));
                f_next = __ldg(reinterpret_cast<const float2*>(far + (j + 1) * IN_W));
            }
            float done[4], fresh[4];
            #pragma unroll
            for (int k = 0; k < 4; ++k) { done[k] = a[k]; a[k] = b[k]; fresh[k] = 0.f; }
            tap_row(done, in, w + 14);
            tap_row(a, in, w + 7);
            tap_row(fresh, in, w);
            #pragma unroll
            for (int k = 0; k < 4; ++k) b[k] = fresh[k];

            if (j >= 2 || step > 0) {              // output row i - 2; its parity is that of j
                float* to = dst + (j - 2) * OUT_W;
                if (WIDE_STORES == 0) {
                    if (c <= LANES - 2) __stcs(reinterpret_cast<float2*>(to), make_float2(done[0], done[1]));
                    if (c <= LANES - 3) __stcs(reinterpret_cast<float2*>(to) + 1, make_float2(done[2], done[3]));
                } else if (j % 2 == 0) {
                    if (c <= LANES - 3) __stcs(reinterpret_cast<float4*>(to), make_float4(done[0], done[1], done[2], done[3]));
                    else if (c == LANES - 2) __stcs(reinterpret_cast<float2*>(to), make_float2(done[0], done[1]));
                } else {
                    const float nx = __shfl_down_sync(0xffffffffu, done[0], 1);
                    const float ny = __shfl_down_sync(0xffffffffu, done[1], 1);
                    if (lane == 0) __stcs(reinterpret_cast<float2*>(to), make_float2(done[0], done[1]));
                    if (lane == 31) {
                        if (c <= LANES - 3) __stcs(reinterpret_cast<float2*>(to) + 1, make_float2(done[2], done[3]));
                    } else if (c <= LANES - 3) {
                        __stcs(reinterpret_cast<float4*>(to + 2), make_float4(done[2], done[3], nx, ny));
                    }
                }
            }
        }
        own += 4 * IN_W;
        right += 4 * IN_W;
        far += 4 * IN_W;
        dst += 4 * OUT_W;
    }
}
