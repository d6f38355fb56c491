#include "problem.h"

// Direct transposed convolution, stride 1: out[co][d][h][w] = sum x[ci][d-kd][h-kh][w-kw] * weight[ci][co][kd][kh][kw].
// A block makes 9 output rows of one (n, d) for all 24 channels. Shared rows of x have a pitch of 98 floats, 2 zeros and the
// 96 inputs, so that flattened output f reads element f + (2-kh)*98 + (2-kw): no bounds checks. 9*98 outputs are 126 chunks
// of 7; a lane makes one chunk x 12 channels. Steps of 4 input channels at one kd arrive by cp.async, double buffered.
// At the end the sums pass through the free buffers, so that they leave as coalesced 8-byte stores.

constexpr int CI = int(X_DIM1), CO = int(OUT_DIM1);
constexpr int D = int(X_DIM2), H = int(X_DIM3), W = int(X_DIM4);
constexpr int OD = int(OUT_DIM2), OH = int(OUT_DIM3), OW = int(OUT_DIM4);
constexpr int THREADS = 256;
constexpr int ROWS = 9;
constexpr int INROWS = ROWS + 2;
constexpr int PITCH = OW;                              // 98: two zeros and 96 inputs
constexpr int STRIPF = INROWS * PITCH + 2;             // 1080 floats
constexpr int CSTEP = 4;
constexpr int XF = CSTEP * STRIPF;
constexpr int WF = CSTEP * 9 * CO;
constexpr int BUF = XF + WF;                           // floats of one buffer
constexpr int GROUPS = CI / CSTEP;
constexpr int CHUNKS = ROWS * OW / 7;                  // 126
constexpr int STRIPOUT = ROWS * OW;                    // 882
static_assert(W == 96 && OW == 98 && CO == 24 && CI % CSTEP == 0 && ROWS * OW % 7 == 0, "shapes");
static_assert(CONV_TRANSPOSE3D_KERNEL_SIZE_0 == 3 && CONV_TRANSPOSE3D_STRIDE_0 == 1 && CONV_TRANSPOSE3D_PADDING_0 == 0, "");
static_assert(8 * STRIPOUT <= 2 * BUF && XF % 4 == 0 && BUF % 4 == 0, "staging");

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

extern "C" __global__ void reorder(const float* __restrict__ weight, float* __restrict__ packed) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;   // [kd][ci][kh][kw][co]
    if (i >= int(CONV_TRANSPOSE3D_WEIGHT_SIZE)) return;
    const int co = i % CO;
    const int tap = (i / CO) % 9;
    const int ci = (i / (CO * 9)) % CI;
    const int kd = i / (CO * 9 * CI);
    packed[i] = weight[ci * int(CONV_TRANSPOSE3D_WEIGHT_STRIDE0) + co * 27 + kd * 9 + tap];
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
deconv(const float* __restrict__ x, const float* __restrict__ packed, float* __restrict__ out) {
    extern __shared__ __align__(128) float smem[];

    const int tid = threadIdx.x;
    const int lane = tid & 31, warp = tid >> 5;
    const int h0 = int(blockIdx.x) * ROWS;
    const int od = int(blockIdx.y);
    const int n = int(blockIdx.z);

    const int kd_lo = max(0, od - (D - 1));
    const int kd_hi = min(2, od);
    const int steps = (kd_hi - kd_lo + 1) * GROUPS;

    // Copier's place: 64 threads a channel, 48 of them copy 8 bytes of each row.
    const int cc = tid >> 6, cu = tid & 63;
    const int row_lo = max(0, 2 - h0);                 // strip row j is input row h0 - 2 + j
    const int row_hi = min(INROWS, H + 2 - h0);        // exclusive
    const float* xsrc = x + (long long)(n * CI + cc) * (D * H * W) + (h0 - 2) * W + 2 * cu;
    const unsigned xdst = at(smem) + unsigned(cc * STRIPF + 2 + 2 * cu) * 4u;
    const unsigned wdst = at(smem) + unsigned(XF + tid * 4) * 4u;

    auto fetch = [&](int s) {
        const int kd = kd_lo + s / GROUPS;
        const int g = s % GROUPS;
        const unsigned shift = (s & 1) ? unsigned(BUF) * 4u : 0u;
        if (cu < W / 2) {
            const float* from = xsrc + (long long)(g * CSTEP) * (D * H * W) + (od - kd) * (H * W);
            const unsigned to = xdst + shift;
            #pragma unroll
            for (int r = 0; r < INROWS; ++r)
                if (r >= row_lo && r < row_hi)
                    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                                 :: "r"(to + unsigned(r * PITCH) * 4u), "l"(from + r * W) : "memory");
        }
        if (tid < WF / 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         :: "r"(wdst + shift), "l"(packed + (kd * CI + g * CSTEP) * (9 * CO) + tid * 4) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    for (int i = tid; i < 2 * BUF; i += THREADS) smem[i] = 0.f;
    __syncthreads();
    fetch(0);

    const int half = warp >> 2;                        // channels half*12 .. +11
    const int chunk = (warp & 3) * 32 + lane;
    const int f0 = min(chunk, CHUNKS - 1) * 7;         // the two idle lanes repeat the last chunk

    float acc[12][7];
    #pragma unroll
    for (int o = 0; o < 12; ++o)
        #pragma unroll
        for (int q = 0; q < 7; ++q) acc[o][q] = 0.f;

    #pragma unroll 1
    for (int s = 0; s < steps; ++s) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (s + 1 < steps) fetch(s + 1);
        const float* xs = smem + ((s & 1) ? BUF : 0) + f0;
        const float* ws = smem + ((s & 1) ? BUF : 0) + XF + half * 12;
        #pragma unroll 1
        for (int c = 0; c < CSTEP; ++c) {
            #pragma unroll
            for (int kh = 0; kh < 3; ++kh) {
                float v[9];
                #pragma unroll
                for (int e = 0; e < 9; ++e) v[e] = xs[(2 - kh) * PITCH + e];
                #pragma unroll
                for (int kw = 0; kw < 3; ++kw) {
                    const float4* wp = reinterpret_cast<const float4*>(ws + (kh * 3 + kw) * CO);
                    const float4 wa = wp[0], wb = wp[1], wc = wp[2];
                    const float g[12] = {wa.x, wa.y, wa.z, wa.w, wb.x, wb.y, wb.z, wb.w, wc.x, wc.y, wc.z, wc.w};
                    #pragma unroll
                    for (int o = 0; o < 12; ++o)
                        #pragma unroll
                        for (int q = 0; q < 7; ++q) acc[o][q] = fmaf(g[o], v[q + 2 - kw], acc[o][q]);
                }
            }
            xs += STRIPF;
            ws += 9 * CO;
        }
    }

    // ---- four channels of each half at a time through shared memory
    const int pairs = min(ROWS, OH - h0) * OW / 2;     // 441, or 392 for the last strip
    float* plane = out + (long long)n * OUT_STRIDE0 + od * int(OUT_STRIDE2) + h0 * OW;
    #pragma unroll
    for (int round = 0; round < 3; ++round) {
        __syncthreads();
        if (chunk < CHUNKS) {
            #pragma unroll
            for (int j = 0; j < 4; ++j)
                #pragma unroll
                for (int q = 0; q < 7; ++q) smem[(half * 4 + j) * STRIPOUT + f0 + q] = acc[round * 4 + j][q];
        }
        __syncthreads();
        const int co = (warp >> 2) * 12 + round * 4 + (warp & 3);   // the channel in staged row "warp"
        const float2* from = reinterpret_cast<const float2*>(smem + warp * STRIPOUT);
        float2* to = reinterpret_cast<float2*>(plane + (long long)co * OUT_STRIDE1);
        for (int i = lane; i < pairs; i += 32) to[i] = from[i];
    }
}
