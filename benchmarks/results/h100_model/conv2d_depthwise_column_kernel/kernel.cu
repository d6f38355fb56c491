#include "problem.h"

// 128 lanes own the 512 columns of one strip of one plane as float4 and walk over its rows; eight rows are loaded before the
// first is used, and a row's register is loaded again (eight rows ahead) as soon as it was used. Even strips walk down, odd
// strips walk up with the taps in reverse: two strips that share halo rows read them at about the same time, and the second
// finds them in L2. ROWS divides 510 and ROWS + 2 is a multiple of 8: no ragged steps.

constexpr int LANES = int(X_COLS) / 4;             // 128
constexpr int STRIPS = int(OUT_DIM2) / ROWS;
constexpr int STEPS = (ROWS + 2) / 8;
constexpr int UNITS = BLOCK / LANES;
constexpr int CHANNELS = int(X_DIM1);
static_assert(int(OUT_DIM2) % ROWS == 0 && (ROWS + 2) % 8 == 0, "whole steps only");
static_assert(CONV2D_KERNEL_SIZE_0 == 3 && CONV2D_KERNEL_SIZE_1 == 1 && OUT_DIM3 == X_DIM3, "three taps of one column");
static_assert((int(X_DIM0) * CHANNELS * STRIPS) % UNITS == 0, "whole blocks");

__device__ __forceinline__ float4 times(float w, float4 v) { return make_float4(w * v.x, w * v.y, w * v.z, w * v.w); }
__device__ __forceinline__ float4 plus(float w, float4 v, float4 s) {
    return make_float4(fmaf(w, v.x, s.x), fmaf(w, v.y, s.y), fmaf(w, v.z, s.z), fmaf(w, v.w, s.w));
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1024 / BLOCK)
column_conv(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    const int unit = int(blockIdx.x) * UNITS + int(threadIdx.x) / LANES;
    const int c = int(threadIdx.x) % LANES;
    const int plane = unit / STRIPS;
    const int strip = unit - plane * STRIPS;
    const bool up = (strip & 1) != 0;
    const int row = up ? LANES : -LANES;           // minus the distance of two rows in walking order, in float4
    const int pitch = -row;
    const int top = strip * ROWS;                  // first output row and first input row of the strip

    const float4* src = reinterpret_cast<const float4*>(x) + (long long)plane * int(X_STRIDE1 / 4)
                        + (up ? top + ROWS + 1 : top) * LANES + c;
    float4* dst = reinterpret_cast<float4*>(out) + (long long)plane * int(OUT_STRIDE1 / 4)
                  + (up ? top + ROWS - 1 : top) * LANES + c;

    float4 v[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldg(src + j * pitch);

    const float* taps = weight + (plane % CHANNELS) * int(CONV2D_WEIGHT_STRIDE0);
    const float w0 = __ldg(taps + (up ? 2 : 0));   // tap of the row that is met first
    const float w1 = __ldg(taps + 1);
    const float w2 = __ldg(taps + (up ? 0 : 2));

    float4 a = make_float4(0.f, 0.f, 0.f, 0.f);    // two of three rows are in
    float4 b = a;                                  // one of three rows is in

    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const bool more = step + 1 < STEPS;
        #pragma unroll
        for (int j = 0; j < 8; ++j) {              // the strip's input row i = 8 * step + j in walking order
            const float4 in = v[j];
            if (more) v[j] = __ldg(src + (j + 8) * pitch);
            const float4 done = plus(w2, in, a);
            a = plus(w1, in, b);
            b = times(w0, in);
            if (j >= 2 || step > 0) __stcs(dst + (j - 2) * pitch, done);
        }
        src += 8 * pitch;
        dst += 8 * pitch;
    }
}

