#include "problem.h"
#include <cuda_bf16.h>

// One block a head. A warp takes tiles of 16 keys; half a warp reads one row of 128 values as 16 vectors of 16 bytes, so that
// two neighbouring rows make one load of 512 contiguous bytes. Eight such loads of K and of V are always in hand or on the way:
// the next K is asked for as soon as the scores are formed, the next V as soon as the present one has been added.
constexpr int UNROLL = 8;
constexpr int LENGTH = int(K_DIM2);
constexpr int WIDTH = int(K_DIM3);
constexpr int ROW = WIDTH / 8;                       // 16-byte vectors of a row
constexpr int TILE = 2 * UNROLL;                     // keys of a warp's step
constexpr int STEPS = LENGTH / (TILE * WARPS);
constexpr int STRIDE = TILE * WARPS * ROW;           // vectors from one step to the next
static_assert(WIDTH == 128 && LENGTH % (TILE * WARPS) == 0 && WARPS >= 4 && WARPS <= 16, "as this kernel divides the work");

__device__ __forceinline__ float low(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(unsigned w) { return __uint_as_float(w & 0xffff0000u); }
__device__ __forceinline__ float ex2(float a) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
__device__ __forceinline__ uint4 load16(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) decode(const __nv_bfloat16* __restrict__ q, const __nv_bfloat16* __restrict__ k, const __nv_bfloat16* __restrict__ v, __nv_bfloat16* __restrict__ out) {
    __shared__ __align__(16) float of_warp[WARPS][WIDTH];
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long head = blockIdx.x;
    const long long start = head * (LENGTH * ROW) + warp * (TILE * ROW) + lane;
    const uint4* kp = reinterpret_cast<const uint4*>(k) + start;
    const uint4* vp = reinterpret_cast<const uint4*>(v) + start;

    uint4 kv[UNROLL], vv[UNROLL];
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) kv[i] = load16(kp + i * 2 * ROW);
    #pragma unroll
    for (int i = 0; i < UNROLL; ++i) vv[i] = load16(vp + i * 2 * ROW);

    const float scale = 0.08838834764831845f * 1.4426950408889634f;   // WIDTH ** -0.5, and powers of two for exponentials
    const uint4 qv = reinterpret_cast<const uint4*>(q)[head * ROW + lane % 16];
    const float qf[8] = {low(qv.x) * scale, high(qv.x) * scale, low(qv.y) * scale, high(qv.y) * scale,
                         low(qv.z) * scale, high(qv.z) * scale, low(qv.w) * scale, high(qv.w) * scale};

    float top = __int_as_float(0xff800000), sum = 0.f;
    float acc[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) acc[j] = 0.f;

    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        float s[UNROLL];
        #pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            float a = low(kv[i].x) * qf[0], b = high(kv[i].x) * qf[1];
            a = fmaf(low(kv[i].y), qf[2], a);  b = fmaf(high(kv[i].y), qf[3], b);
            a = fmaf(low(kv[i].z), qf[4], a);  b = fmaf(high(kv[i].z), qf[5], b);
            a = fmaf(low(kv[i].w), qf[6], a);  b = fmaf(high(kv[i].w), qf[7], b);
            s[i] = a + b;
        }
        if (step + 1 < STEPS) {
            kp += STRIDE;
            #pragma unroll
            for (int i = 0; i < UNROLL; ++i) kv[i] = load16(kp + i * 2 * ROW);
        }
        #pragma unroll
        for (int d = 8; d > 0; d /= 2) {
            #pragma unroll
            for (int i = 0; i < UNROLL; ++i) s[i] += __shfl_xor_sync(0xffffffffu, s[i], d);
        }
        float m = s[0];
        #pragma unroll
        for (int i = 1; i < UNROLL; ++i) m = fmaxf(m, s[i]);
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 16));
        m = fmaxf(m, top);
        const float shrink = ex2(top - m);
        top = m;
        float part = 0.f;
        #pragma unroll
        for (int i = 0; i < UNROLL; ++i) { s[i] = ex2(s[i] - m); part += s[i]; }
        sum = fmaf(sum, shrink, part);
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[j] *= shrink;
        #pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            acc[0] = fmaf(s[i], low(vv[i].x), acc[0]);  acc[1] = fmaf(s[i], high(vv[i].x), acc[1]);
            acc[2] = fmaf(s[i], low(vv[i].y), acc[2]);  acc[3] = fmaf(s[i], high(vv[i].y), acc[3]);
            acc[4] = fmaf(s[i], low(vv[i].z), acc[4]);  acc[5] = fmaf(s[i], high(vv[i].z), acc[5]);
            acc[6] = fmaf(s[i], low(vv[i].w), acc[6]);  acc[7] = fmaf(s[i], high(vv[i].w), acc[7]);
        }
        if (step + 1 < STEPS) {
            vp += STRIDE;
            #pragma unroll
            for (int i = 0; i < UNROLL; ++i) vv[i] = load16(vp + i * 2 * ROW);
        }
    }

    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    #pragma unroll
    for (int j = 0; j < 8; ++j) acc[j] += __shfl_xor_sync(0xffffffffu, acc[j], 16);
    if (lane < 16) {
        float4* to = reinterpret_cast<float4*>(&of_warp[warp][lane * 8]);
        to[0] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        to[1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
    }
    if (lane == 0) { maxima[warp] = top; sums[warp] = sum; }
    __syncthreads();
    if (threadIdx.x < WIDTH) {
        float m = maxima[0];
        #pragma unroll
        for (int w = 1; w < WARPS; ++w) m = fmaxf(m, maxima[w]);
        float total = 0.f, value = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float f = ex2(maxima[w] - m);
            total = fmaf(f, sums[w], total);
            value = fmaf(f, of_warp[w][threadIdx.x], value);
        }
        out[head * WIDTH + threadIdx.x] = __float2bfloat16_rn(value / total);
    }
}
