#include "problem.h"
#include <cuda_bf16.h>

constexpr int WARPS = 8;
constexpr int UNROLL = 4;
constexpr int VECS = int(X_COLS) / 8;                // 512 vectors of 16 bytes a row
constexpr int STEPS = VECS / (32 * UNROLL);
static_assert(VECS % (32 * UNROLL) == 0 && int(X_ROWS) % WARPS == 0, "shape");

struct Sums { float xx0, xx1, yy0, yy1, xy0, xy1; };

__device__ __forceinline__ void add_word(unsigned a, unsigned b, float sx, float sy, Sums& s) {
    const float a0 = __uint_as_float(a << 16) * sx, a1 = __uint_as_float(a & 0xFFFF0000u) * sx;
    const float b0 = __uint_as_float(b << 16) * sy, b1 = __uint_as_float(b & 0xFFFF0000u) * sy;
    s.xx0 = fmaf(a0, a0, s.xx0); s.xx1 = fmaf(a1, a1, s.xx1);
    s.yy0 = fmaf(b0, b0, s.yy0); s.yy1 = fmaf(b1, b1, s.yy1);
    s.xy0 = fmaf(a0, b0, s.xy0); s.xy1 = fmaf(a1, b1, s.xy1);
}
__device__ __forceinline__ void add_vector(const uint4& a, const uint4& b, float sx, float sy, Sums& s) {
    add_word(a.x, b.x, sx, sy, s);
    add_word(a.y, b.y, sx, sy, s);
    add_word(a.z, b.z, sx, sy, s);
    add_word(a.w, b.w, sx, sy, s);
}
__device__ __forceinline__ void warp_sums(const Sums& s, float& xx, float& yy, float& xy) {
    xx = s.xx0 + s.xx1; yy = s.yy0 + s.yy1; xy = s.xy0 + s.xy1;
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        xx += __shfl_xor_sync(0xffffffffu, xx, step);
        yy += __shfl_xor_sync(0xffffffffu, yy, step);
        xy += __shfl_xor_sync(0xffffffffu, xy, step);
    }
}
__device__ __forceinline__ float cosine(float xx, float yy, float xy, float sx, float sy) {
    return xy / (fmaxf(sqrtf(xx), 1e-12f * sx) * fmaxf(sqrtf(yy), 1e-12f * sy));
}
constexpr float LIMIT = 1e37f;                       // above it squares may have overflowed: the row is summed again, scaled
constexpr float SHRINK = 8.271806125530277e-25f;     // 2^-80

extern "C" __global__ void __launch_bounds__(WARPS * 32, 4)
cosines(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ y, __nv_bfloat16* __restrict__ out) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint4* px = reinterpret_cast<const uint4*>(x + row * int(X_STRIDE0)) + lane;
    const uint4* py = reinterpret_cast<const uint4*>(y + row * int(Y_STRIDE0)) + lane;
    Sums s = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    uint4 a[UNROLL], b[UNROLL];
    #pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
        a[k] = __ldcs(px + k * 32);
        b[k] = __ldcs(py + k * 32);
    }
    #pragma unroll 1
    for (int step = 1; step < STEPS; ++step) {
        #pragma unroll
        for (int k = 0; k < UNROLL; ++k) {           // a pair is used, and its registers are loaded again at once
            add_vector(a[k], b[k], 1.f, 1.f, s);
            a[k] = __ldcs(px + (step * UNROLL + k) * 32);
            b[k] = __ldcs(py + (step * UNROLL + k) * 32);
        }
    }
    #pragma unroll
    for (int k = 0; k < UNROLL; ++k) add_vector(a[k], b[k], 1.f, 1.f, s);
    float xx, yy, xy, sx = 1.f, sy = 1.f;
    warp_sums(s, xx, yy, xy);
    if (!(xx < LIMIT && yy < LIMIT)) {               // the same for all lanes; rare
        if (!(xx < LIMIT)) sx = SHRINK;
        if (!(yy < LIMIT)) sy = SHRINK;
        Sums again = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        #pragma unroll 1
        for (int k = 0; k < VECS / 32; ++k) add_vector(px[k * 32], py[k * 32], sx, sy, again);
        warp_sums(again, xx, yy, xy);
    }
    if (lane == 0)
        __stcs(reinterpret_cast<unsigned short*>(out) + row, __bfloat16_as_ushort(__float2bfloat16(cosine(xx, yy, xy, sx, sy))));
}
