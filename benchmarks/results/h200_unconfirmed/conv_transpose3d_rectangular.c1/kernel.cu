#include "problem.h"

// Transposed 3x5x7 convolution as a correlation with the flipped filter and padding 2, 4, 6:
// F(2,3) along depth nested with F(2,5) along height, the 7 taps along W direct.

constexpr int THREADS = 384;
constexpr int IN = int(X_DIM1), OC = int(OUT_DIM1);
constexpr int D = int(X_DIM2), H = int(X_DIM3), W = int(X_DIM4);
constexpr int OW = int(OUT_DIM4);                 // 70
constexpr int TILES_D = int(OUT_DIM2) / 2;        // 9
constexpr int TILES_H = int(OUT_DIM3) / 2;        // 18
constexpr int POINTS = 24;                        // depth index * 6 + height index
constexpr int TAPS = 7;
constexpr int CI = 4;                             // channels of a step
constexpr int STEPS = IN / CI;                    // 8
constexpr int PITCH = 79;                         // 6 zeros, 64 values, 9 zeros
constexpr int U_POINT = TAPS * OC;                // 112
constexpr int U_STEP = CI * POINTS * U_POINT;     // 10752 words
constexpr int T_STEP = CI * POINTS * PITCH;       // 7584 words

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

// u[ci][point][kw][co]
extern "C" __global__ void __launch_bounds__(128) filter_transform(const float* __restrict__ weight, float* __restrict__ u) {
    const int index = blockIdx.x * 128 + threadIdx.x;
    if (index >= IN * TAPS * OC) return;
    const int co = index % OC, kw = (index / OC) % TAPS, ci = index / (OC * TAPS);
    const float* w = weight + (ci * OC + co) * 105 + (6 - kw);
    float t[4][5];
    #pragma unroll
    for (int b = 0; b < 5; ++b) {
        const float g0 = w[2 * 35 + (4 - b) * 7], g1 = w[35 + (4 - b) * 7], g2 = w[(4 - b) * 7];
        t[0][b] = g0;
        t[1][b] = 0.5f * ((g0 + g2) + g1);
        t[2][b] = 0.5f * ((g0 + g2) - g1);
        t[3][b] = g2;
    }
    float* to = u + ci * (POINTS * U_POINT) + kw * OC + co;
    #pragma unroll
    for (int a = 0; a < 4; ++a) {
        float* p = to + a * 6 * U_POINT;
        const float g0 = t[a][0], g1 = t[a][1], g2 = t[a][2], g3 = t[a][3], g4 = t[a][4];
        const float even = g0 + g2 + g4, odd = g1 + g3;
        const float even2 = g0 + 4.f * g2 + 16.f * g4, odd2 = 2.f * g1 + 8.f * g3;
        p[0] = 0.25f * g0;
        p[1 * U_POINT] = (even + odd) / -6.f;
        p[2 * U_POINT] = (even - odd) / -6.f;
        p[3 * U_POINT] = (even2 + odd2) / 24.f;
        p[4 * U_POINT] = (even2 - odd2) / 24.f;
        p[5 * U_POINT] = g4;
    }
}

// Depth, then height; v is the place of point 0.
__device__ __forceinline__ void input_transform(const float (&d)[4][6], float* v) {
    float t[4][6];
    #pragma unroll
    for (int j = 0; j < 6; ++j) {
        t[0][j] = d[0][j] - d[2][j];
        t[1][j] = d[1][j] + d[2][j];
        t[2][j] = d[2][j] - d[1][j];
        t[3][j] = d[1][j] - d[3][j];
    }
    #pragma unroll
    for (int a = 0; a < 4; ++a) {
        float* p = v + a * 6 * PITCH;
        const float e = t[a][4] - 4.f * t[a][2], o = t[a][3] - 4.f * t[a][1];
        const float f = t[a][4] - t[a][2], g = 2.f * (t[a][3] - t[a][1]);
        p[0] = (4.f * t[a][0] - 5.f * t[a][2]) + t[a][4];
        p[1 * PITCH] = e + o;
        p[2 * PITCH] = e - o;
        p[3 * PITCH] = f + g;
        p[4 * PITCH] = f - g;
        p[5 * PITCH] = (4.f * t[a][1] - 5.f * t[a][3]) + t[a][5];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv(const float* __restrict__ x, const float* __restrict__ u,
                                                               float* __restrict__ out) {
    extern __shared__ __align__(128) float shared[];      // weights 0, weights 1, rows 0, rows 1
    __shared__ __align__(8) unsigned long long bars[2];
    float* const rows = shared + 2 * U_STEP;

    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const int th = blockIdx.x % TILES_H, td = (blockIdx.x / TILES_H) % TILES_D, b = blockIdx.x / (TILES_H * TILES_D);

    // Fetching: column tid%64 of channel tid/64 of a step, threads 0 to 255.
    const bool fetcher = tid < CI * W;
    const int fw = tid & (W - 1), fc = tid / W;
    const int d0 = 2 * td - 2, h0 = 2 * th - 4;
    const float* const from = x + (b * int(X_STRIDE0) + fc * int(X_STRIDE1) + d0 * (H * W) + h0 * W + fw);
    float* const put = rows + fc * (POINTS * PITCH) + 6 + fw;

    float d[4][6];
    auto fetch = [&](int step) {
        const float* p = from + step * (CI * int(X_STRIDE1));
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int j = 0; j < 6; ++j) {
                float v = 0.f;
                if (unsigned(d0 + i) < unsigned(D) && unsigned(h0 + j) < unsigned(H)) v = __ldg(p + i * (H * W) + j * W);
                d[i][j] = v;
            }
        }
    };

    if (fetcher) fetch(0);
    if (tid == 0) {
        bar_init(at(&bars[0]), 1);
        bar_init(at(&bars[1]), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        bar_expect(at(&bars[0]), U_STEP * 4);
        bulk_load(at(shared), u, U_STEP * 4, at(&bars[0]));
    }
    for (int i = tid; i < 2 * CI * POINTS * 15; i += THREADS) {     // the zeros beside the rows of both buffers
        const int row = i / 15, z = i % 15;
        rows[row * PITCH + (z < 6 ? z : z + W)] = 0.f;
    }
    if (fetcher) input_transform(d, put);
    __syncthreads();

    // Half a warp owns a point: 8 lanes of 9 columns times 2 halves of 8 output channels.
    const int point = warp * 2 + (lane >> 4);
    const int half = (lane >> 3) & 1, g = lane & 7;
    const float* const t_from = rows + point * PITCH + 9 * g;
    const float* const u_from = shared + point * U_POINT + half * 8;

    float acc[9][8];
    #pragma unroll
    for (int i = 0; i < 9; ++i) {
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;
    }

    #pragma unroll 1
    for (int s = 0; s < STEPS; ++s) {
        const int buf = s & 1;
        const bool more = s + 1 < STEPS;
        if (more) {
            if (tid == THREADS - 1) {
                const unsigned bar = at(&bars[buf ^ 1]);
                bar_expect(bar, U_STEP * 4);
                bulk_load(at(shared + (buf ^ 1) * U_STEP), u + (s + 1) * U_STEP, U_STEP * 4, bar);
            }
            if (fetcher) fetch(s + 1);
        }
        bar_wait(at(&bars[buf]), (s >> 1) & 1);

        const float* t = t_from + buf * T_STEP;
        const float* f = u_from + buf * U_STEP;
        // A step's terms are summed apart, four output channels at a time, and added to the running sums at once: large
        // transformed sums are rounded 8 times and not 224 times.
        #pragma unroll
        for (int q = 0; q < 2; ++q) {
            float part[9][4];
            #pragma unroll
            for (int i = 0; i < 9; ++i) {
                #pragma unroll
                for (int j = 0; j < 4; ++j) part[i][j] = 0.f;
            }
            #pragma unroll 1
            for (int c = 0; c < CI; ++c) {
                float in[15];
                #pragma unroll
                for (int i = 0; i < 15; ++i) in[i] = t[c * (POINTS * PITCH) + i];
                #pragma unroll
                for (int k = 0; k < TAPS; ++k) {
                    const float4 w4 = *reinterpret_cast<const float4*>(f + c * (POINTS * U_POINT) + k * OC + q * 4);
                    const float w[4] = {w4.x, w4.y, w4.z, w4.w};
                    #pragma unroll
                    for (int i = 0; i < 9; ++i) {
                        #pragma unroll
                        for (int j = 0; j < 4; ++j) part[i][j] = fmaf(in[i + k], w[j], part[i][j]);
                    }
                }
            }
            #pragma unroll
            for (int i = 0; i < 9; ++i) {
                #pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][q * 4 + j] += part[i][j];
            }
        }
        if (more && fetcher) input_transform(d, put + (buf ^ 1) * T_STEP);
        __syncthreads();
    }

    // Sums as [point][co][70] over the buffers, then the inverse transforms.
    {
        float* to = shared + point * (OC * OW) + half * 8 * OW + 9 * g;
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            #pragma unroll
            for (int i = 0; i < 9; ++i) {
                if (i < 7 || g < 7) to[j * OW + i] = acc[i][j];
            }
        }
    }
    __syncthreads();
    float* const o = out + (b * int(OUT_STRIDE0) + 2 * td * int(OUT_STRIDE2) + 2 * th * int(OUT_STRIDE3));
    for (int item = tid; item < OC * OW; item += THREADS) {
        const int co = item / OW, w = item % OW;
        float y0[4], y1[4];
        #pragma unroll
        for (int a = 0; a < 4; ++a) {
            const float* m = shared + a * 6 * (OC * OW) + item;
            const float m0 = m[0], m1 = m[OC * OW], m2 = m[2 * OC * OW];
            const float m3 = m[3 * OC * OW], m4 = m[4 * OC * OW], m5 = m[5 * OC * OW];
            y0[a] = m0 + (m1 + m2) + (m3 + m4);
            y1[a] = (m1 - m2) + 2.f * (m3 - m4) + m5;
        }
        float* to = o + co * int(OUT_STRIDE1) + w;
        to[0] = y0[0] + y0[1] + y0[2];
        to[int(OUT_STRIDE3)] = y1[0] + y1[1] + y1[2];
        to[int(OUT_STRIDE2)] = y0[1] - y0[2] - y0[3];
        to[int(OUT_STRIDE2) + int(OUT_STRIDE3)] = y1[1] - y1[2] - y1[3];
    }
}
