#include "problem.h"

// out[o][t] = sum over c, k of w[o][c][k] x[c][3 t + 4 k], and 3 t + 4 k = 3 (t + k) + k: plane k, place t.
// A warp brings one of a step's 8 channels: a lane 12 neighbouring inputs, four of each plane. With three values of the next
// lane they are the places 4 lane .. 4 lane + 3 of all three planes, stored as one 16-byte vector each.

constexpr int IC = int(X_DIM1), OC = int(OUT_DIM1);
constexpr int LX = int(X_DIM2), LOUT = int(OUT_DIM2);
constexpr int TILE = 128, CHANNELS = 8, DEPTH = CHANNELS * 3;
constexpr int XPITCH = 136, WPITCH = 128;
constexpr int WBUF = DEPTH * WPITCH, XBUF = DEPTH * XPITCH;
constexpr int STEPS = IC / CHANNELS;
static_assert(OC == TILE && CONV1D_KERNEL_SIZE_0 == 3 && CONV1D_STRIDE_0 == 3 && CONV1D_DILATION_0 == 4, "shape");
static_assert(LX % 4 == 0 && LOUT % 2 == 0 && OC * LOUT % 4 == 0, "alignment");
static_assert(LX - 3 * ((LOUT - 1) / TILE * TILE) >= 12, "the last tile has inputs for a lane");

__device__ __forceinline__ float4 load4(const float* p) { return __ldg(reinterpret_cast<const float4*>(p)); }

// [channel][tap][128]
extern "C" __global__ void __launch_bounds__(256) repack(const float* __restrict__ w, float* __restrict__ wt) {
    const int i = int(blockIdx.x) * 256 + int(threadIdx.x);
    if (i >= IC * 3 * OC) return;
    wt[i] = w[(i % OC) * int(CONV1D_WEIGHT_STRIDE0) + i / OC];
}

__device__ __forceinline__ void fragments(const float* w, const float* x, float (&fw)[8], float (&fx)[8]) {
    const float4 w0 = *reinterpret_cast<const float4*>(w);
    const float4 w1 = *reinterpret_cast<const float4*>(w + 64);
    const float4 x0 = *reinterpret_cast<const float4*>(x);
    const float4 x1 = *reinterpret_cast<const float4*>(x + 64);
    fw[0] = w0.x; fw[1] = w0.y; fw[2] = w0.z; fw[3] = w0.w; fw[4] = w1.x; fw[5] = w1.y; fw[6] = w1.z; fw[7] = w1.w;
    fx[0] = x0.x; fx[1] = x0.y; fx[2] = x0.z; fx[3] = x0.w; fx[4] = x1.x; fx[5] = x1.y; fx[6] = x1.z; fx[7] = x1.w;
}

// Half a step.
__device__ __forceinline__ void multiply(const float* w, const float* x, float (&acc)[8][8]) {
    constexpr int N = DEPTH / 2;
    float fw[2][8], fx[2][8];
    fragments(w, x, fw[0], fx[0]);
    #pragma unroll
    for (int d = 0; d < N; ++d) {
        if (d + 1 < N) fragments(w + (d + 1) * WPITCH, x + (d + 1) * XPITCH, fw[(d + 1) & 1], fx[(d + 1) & 1]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            #pragma unroll
            for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(fw[d & 1][i], fx[d & 1][j], acc[i][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) conv(const float* __restrict__ x, const float* __restrict__ wt,
                                                          float* __restrict__ out) {
    extern __shared__ __align__(128) float shared[];
    float* const ws = shared;                            // two buffers of weights, then two of inputs
    float* const xs = shared + 2 * WBUF;

    const int tid = int(threadIdx.x), lane = tid & 31, warp = tid >> 5;
    const int t0 = int(blockIdx.x) * TILE, n = int(blockIdx.y);
    const int ty = (warp >> 1) * 4 + (lane >> 3), tx = (warp & 1) * 8 + (lane & 7);

    // Lanes beyond the end of x read what is there before it: only places that are not stored depend on it.
    const int left = LX - 3 * t0;
    const int first = 12 * lane < left - 12 ? 12 * lane : left - 12;
    const float* xp = x + (long long)n * X_STRIDE0 + (warp * LX + 3 * t0);
    const float* ep = xp + (left >= 390 ? 384 : 0);      // what lane 31 needs of the inputs after its own
    xp += first;
    const float* wp = wt + tid * 4;
    float* const put_x = xs + warp * (3 * XPITCH) + lane * 4;
    float* const put_w = ws + tid * 4;

    float4 p, q, r;
    float e1 = 0.f, e2 = 0.f, e5 = 0.f;
    auto load_x = [&]() {
        p = load4(xp);
        q = load4(xp + 4);
        r = load4(xp + 8);
        if (lane == 31) {
            e1 = __ldg(ep + 1);
            e2 = __ldg(ep + 2);
            e5 = __ldg(ep + 5);
        }
        xp += CHANNELS * LX;
        ep += CHANNELS * LX;
    };
    auto store_x = [&](int buf) {
        float next1 = __shfl_down_sync(0xffffffffu, p.y, 1);
        float next2 = __shfl_down_sync(0xffffffffu, p.z, 1);
        float next5 = __shfl_down_sync(0xffffffffu, q.y, 1);
        if (lane == 31) {
            next1 = e1;
            next2 = e2;
            next5 = e5;
        }
        // Inputs 0 .. 11: p.x p.y p.z p.w q.x q.y q.z q.w r.x r.y r.z r.w; plane k, place t is input 3 (t + k) + k.
        float* to = put_x + buf * XBUF;
        *reinterpret_cast<float4*>(to) = make_float4(p.x, p.w, q.z, r.y);
        *reinterpret_cast<float4*>(to + XPITCH) = make_float4(q.x, q.w, r.z, next1);
        *reinterpret_cast<float4*>(to + 2 * XPITCH) = make_float4(r.x, r.w, next2, next5);
    };
    auto load_w = [&]() {
        p = load4(wp);
        q = load4(wp + 1024);
        r = load4(wp + 2048);
        wp += DEPTH * OC;
    };
    auto store_w = [&](int buf) {
        float* to = put_w + buf * WBUF;
        *reinterpret_cast<float4*>(to) = p;
        *reinterpret_cast<float4*>(to + 1024) = q;
        *reinterpret_cast<float4*>(to + 2048) = r;
    };

    float acc[8][8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;
    }

    load_x();
    store_x(0);
    load_w();
    store_w(0);
    __syncthreads();

    #pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        const int buf = s & 1;
        const bool more = s + 1 < STEPS;
        const float* w = ws + buf * WBUF + ty * 4;
        const float* v = xs + buf * XBUF + tx * 4;
        // Inputs are on their way during the first half of the arithmetic, weights during the second: half the registers.
        if (more) load_x();
        multiply(w, v, acc);
        if (more) {
            store_x(buf ^ 1);
            load_w();
        }
        multiply(w + (DEPTH / 2) * WPITCH, v + (DEPTH / 2) * XPITCH, acc);
        if (more) {
            store_w(buf ^ 1);
            __syncthreads();
        }
    }

    // Even rows of out begin at a multiple of 16 bytes, odd ones 8 bytes off.
    float* const o = out + (long long)n * OUT_STRIDE0 + t0 + tx * 4;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int oc = (i < 4 ? i : 60 + i) + ty * 4;
        float* line = o + oc * LOUT;
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int t = t0 + tx * 4 + 64 * h;
            float* to = line + 64 * h;
            const float y0 = acc[i][4 * h], y1 = acc[i][4 * h + 1], y2 = acc[i][4 * h + 2], y3 = acc[i][4 * h + 3];
            if (t + 3 < LOUT) {
                if (i % 2 == 0) {
                    __stcs(reinterpret_cast<float4*>(to), make_float4(y0, y1, y2, y3));
                } else {
                    __stcs(reinterpret_cast<float2*>(to), make_float2(y0, y1));
                    __stcs(reinterpret_cast<float2*>(to + 2), make_float2(y2, y3));
                }
            } else if (t + 1 < LOUT) {
                __stcs(reinterpret_cast<float2*>(to), make_float2(y0, y1));
            }
        }
    }
}
