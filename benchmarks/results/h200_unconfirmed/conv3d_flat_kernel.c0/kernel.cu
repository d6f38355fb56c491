// Of the six float4 of a channel's window only what the three taps need is read: a float4, two float2 and a float4.
#include "problem.h"

constexpr int IN_C = int(X_DIM1), OUT_C = int(OUT_DIM1);
constexpr int OUT_D = int(OUT_DIM2);
constexpr int FLAT = int(OUT_STRIDE2);                  // 2540 results of a plane
constexpr int QUADS = FLAT / 4;
constexpr int PLANE = int(X_STRIDE2);                   // 2560 inputs of a plane
constexpr int CHANNEL = int(X_STRIDE1);
constexpr int STEP = int(X_STRIDE3);                    // 10: from one height tap to the next
constexpr int WARPS = 4;                                // of a block: 8 output channels each
constexpr int GROUP = WARPS * 8;                        // output channels of a block
static_assert(FLAT % 4 == 0 && PLANE % 4 == 0 && int(OUT_STRIDE1) % 4 == 0 && STEP == 10, "aligned vectors");
static_assert(int(CONV3D_KERNEL_SIZE_0) == 3 && int(CONV3D_KERNEL_SIZE_1) == 3 && OUT_C % GROUP == 0, "3 x 3 taps");

__device__ __forceinline__ void load_tap(float (&v)[4], const float* __restrict__ p, int kh) {
    if (kh == 1) {                                       // 10 floats on: only 8-byte aligned
        const float2 a = __ldg(reinterpret_cast<const float2*>(p + STEP));
        const float2 b = __ldg(reinterpret_cast<const float2*>(p + STEP + 2));
        v[0] = a.x; v[1] = a.y; v[2] = b.x; v[3] = b.y;
    } else {
        const float4 a = __ldg(reinterpret_cast<const float4*>(p + kh * STEP));
        v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
    }
}

// Asks L2 for a contiguous piece of an input plane, which is read some planes later.
__device__ __forceinline__ void fetch_to_l2(const float* from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
}

// Adds one input plane to three output planes' sums. v holds the plane's first channel; every tap is replaced by that of the
// next channel (or of the next plane's first) right after its use, so that loads are a channel ahead.
template <int ROLE>
__device__ __forceinline__ void add_plane(float (&sum)[3][8][4], float (&v)[3][4], const float*& p, const float4* weights,
                                          float*& to, int rel, int planes, bool active) {
    constexpr int S0 = ROLE, S1 = (ROLE + 2) % 3, S2 = (ROLE + 1) % 3;   // taps 0, 1, 2 in depth
    const int to_next = (rel + 1 < planes ? PLANE : 0) - (IN_C - 1) * CHANNEL;
    const float4* wq = weights;
    #pragma unroll 1
    for (int c = 0; c < IN_C; ++c) {
        p += c + 1 < IN_C ? CHANNEL : to_next;
        #pragma unroll
        for (int kh = 0; kh < 3; ++kh) {
            #pragma unroll
            for (int kd = 0; kd < 3; ++kd) {
                constexpr int SETS[3] = {S0, S1, S2};
                const int s = SETS[kd];
                const float4 a = wq[(kh * 3 + kd) * (GROUP / 4)], b = wq[(kh * 3 + kd) * (GROUP / 4) + 1];
                const float f[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
                #pragma unroll
                for (int i = 0; i < 8; ++i)
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) sum[s][i][j] = fmaf(f[i], v[kh][j], sum[s][i][j]);
            }
            load_tap(v[kh], p, kh);
        }
        wq += 9 * (GROUP / 4);
    }
    if (rel >= 2) {                                      // the oldest plane is complete
        if (active) {
            #pragma unroll
            for (int i = 0; i < 8; ++i)
                __stcs(reinterpret_cast<float4*>(to + i * int(OUT_STRIDE1)),
                       make_float4(sum[S2][i][0], sum[S2][i][1], sum[S2][i][2], sum[S2][i][3]));
        }
        to += FLAT;
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) sum[S2][i][j] = 0.f;
}

extern "C" __global__ void __launch_bounds__(128, 3)
convolve(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ out) {
    __shared__ __align__(16) float sw[IN_C * 9 * GROUP];     // [channel][height tap][depth tap][32 outputs]

    const int t = int(threadIdx.x);
    const int lane = t % 32, warp = t / 32;
    const int half = int(blockIdx.x) % (OUT_C / GROUP);
    for (int i = t; i < IN_C * 9 * GROUP; i += WARPS * 32) {
        const int o = i % GROUP, k = i / GROUP;
        const int kd = k % 3, kh = k / 3 % 3, c = k / 9;
        sw[i] = w[(half * GROUP + o) * int(CONV3D_WEIGHT_STRIDE0) + c * 9 + kd * 3 + kh];
    }
    __syncthreads();

    const int quad = int(blockIdx.x) / (OUT_C / GROUP) * 32 + lane;
    const bool active = quad < QUADS;
    const int flat = (active ? quad : QUADS - 1) * 4;
    const int start = int(blockIdx.y) * RUN;
    const int planes = min(RUN, OUT_D - start) + 2;

    const float* p = x + (long long)blockIdx.z * X_STRIDE0 + start * PLANE + flat;
    float* to = out + (long long)blockIdx.z * OUT_STRIDE0 + (half * GROUP + warp * 8) * int(OUT_STRIDE1) + start * FLAT + flat;
    const float4* weights = reinterpret_cast<const float4*>(sw) + warp * 2;

    float v[3][4];
    #pragma unroll
    for (int kh = 0; kh < 3; ++kh) load_tap(v[kh], p, kh);

    float sum[3][8][4];
    #pragma unroll
    for (int s = 0; s < 3; ++s)
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            #pragma unroll
            for (int j = 0; j < 4; ++j) sum[s][i][j] = 0.f;

    // One lane of each of the first three warps fetches a channel: the block's 128 columns and the 20 that the taps reach.
    const bool fetcher = lane == 0 && warp < IN_C;
    const int block_flat = int(blockIdx.x) / (OUT_C / GROUP) * 128;
    const unsigned piece = unsigned(min(128 + 2 * STEP, PLANE - block_flat) * 4);
    const float* ahead = x + (long long)blockIdx.z * X_STRIDE0 + (fetcher ? warp : 0) * CHANNEL + start * PLANE + block_flat;
    #pragma unroll 1
    for (int k = 1; k < AHEAD; ++k)
        if (fetcher && k < planes) fetch_to_l2(ahead + k * PLANE, piece);
    ahead += AHEAD * PLANE;

    int rel = 0;
    #pragma unroll 1
    while (true) {
        if (fetcher && rel + AHEAD < planes) fetch_to_l2(ahead, piece);
        ahead += PLANE;
        add_plane<0>(sum, v, p, weights, to, rel, planes, active);
        if (++rel == planes) break;
        if (fetcher && rel + AHEAD < planes) fetch_to_l2(ahead, piece);
        ahead += PLANE;
        add_plane<1>(sum, v, p, weights, to, rel, planes, active);
        if (++rel == planes) break;
        if (fetcher && rel + AHEAD < planes) fetch_to_l2(ahead, piece);
        ahead += PLANE;
        add_plane<2>(sum, v, p, weights, to, rel, planes, active);
        if (++rel == planes) break;
    }
}
