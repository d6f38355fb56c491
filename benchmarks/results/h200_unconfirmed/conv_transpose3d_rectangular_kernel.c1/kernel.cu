#include "problem.h"

// Winograd F(2,3) along depth: a block makes the output planes 2t and 2t+1 from x planes 2t-2 .. 2t+1 by four 5x5 products
// over all channels, in the order 1, 0, 2, 3, with one set of 64 sums a thread that is carried through the outputs.
// A block is 256 threads and not 272: nine warps, the last half empty, would load the SM's four schedulers unevenly. The
// first 64 columns are 4-row strips of 16 column groups; the last 4 columns are made by blocks of the same size and code,
// whose 32 pieces (2 rows x 4 columns) come from a column of row pairs, running on from image to image.

constexpr int THREADS = 256;
constexpr int IN_C = int(X_DIM1), OUT_C = int(OUT_DIM1);
constexpr int IN_D = int(X_DIM2), IN_H = int(X_DIM3), IN_W = int(X_DIM4);
constexpr int KH = int(CONV_TRANSPOSE3D_KERNEL_SIZE_1), KW = int(CONV_TRANSPOSE3D_KERNEL_SIZE_2);
constexpr int TAPS = KH * KW;                                  // 25
constexpr int CH = 8;
constexpr int WEIGHTS = TAPS * OUT_C;                          // floats of one point and channel: 1600
constexpr int SLAB = 32 * 52;                                  // floats: 8 x 68 of a strip, or 32 pieces of 6 x 8, padded to 52
constexpr int BUFFER = WEIGHTS + SLAB;
constexpr int STRIPS = int(OUT_DIM3) / 4;                      // 17
constexpr int PAIRS = int(OUT_DIM3) / 2;                       // 34
constexpr int DEPTHS = int(OUT_DIM2) / 2;                      // 33
constexpr int STRIP_BLOCKS = int(X_DIM0) * DEPTHS * STRIPS;
constexpr int EDGE_BLOCKS = int(X_DIM0) * PAIRS / 32;          // for each depth: 17

static_assert(int(CONV_TRANSPOSE3D_KERNEL_SIZE_0) == 3 && KH == 5 && KW == 5 && IN_C == 32 && OUT_C == 64, "3x5x5, 32 to 64");
static_assert(IN_W == 64 && IN_H == 64 && int(OUT_DIM4) == 68 && int(OUT_DIM3) == 68 && int(OUT_DIM2) % 2 == 0, "64 columns");
static_assert(int(X_DIM0) * PAIRS % 32 == 0, "whole edge blocks");
static_assert(int(CONV_TRANSPOSE3D_STRIDE_0) == 1 && int(CONV_TRANSPOSE3D_STRIDE_1) == 1 && int(CONV_TRANSPOSE3D_STRIDE_2) == 1
              && int(CONV_TRANSPOSE3D_GROUPS) == 1 && int(CONV_TRANSPOSE3D_PADDING_0) == 0, "plain");

// [point in the order 1, 0, 2, 3][ci][25, flipped][64]
extern "C" __global__ void transform_filters(const float* __restrict__ weight, float* __restrict__ ready) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= IN_C * WEIGHTS) return;
    const int oc = i & 63;
    const int rest = i >> 6;
    const int ci = rest / TAPS;
    const int tap = rest - ci * TAPS;
    const float* from = weight + ci * int(CONV_TRANSPOSE3D_WEIGHT_STRIDE0) + oc * int(CONV_TRANSPOSE3D_WEIGHT_STRIDE1) + (TAPS - 1 - tap);
    const float g0 = from[2 * TAPS], g1 = from[TAPS], g2 = from[0];
    const float sum = g0 + g2;
    ready[i] = 0.5f * (sum + g1);
    ready[i + IN_C * WEIGHTS] = g0;
    ready[i + 2 * IN_C * WEIGHTS] = 0.5f * (sum - g1);
    ready[i + 3 * IN_C * WEIGHTS] = g2;
}

__device__ __forceinline__ void copy_weights(float* buffer, const float* from) {
    const unsigned to = unsigned(__cvta_generic_to_shared(buffer));
    #pragma unroll
    for (int k = 0; k < (WEIGHTS / 4 + THREADS - 1) / THREADS; ++k) {
        const int i = int(threadIdx.x) + k * THREADS;
        if (i < WEIGHTS / 4)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to + unsigned(i) * 16u), "l"(from + 4 * i) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <bool EDGE>
__device__ __forceinline__ void make_tile(float* smem, const float* __restrict__ x, const float* __restrict__ ready,
                                          float* out, const int t, const int image0, const int piece) {
    constexpr int PITCH = EDGE ? 8 : 68;
    constexpr int LOADS = EDGE ? 32 * 6 : 8 * 17;              // quads to load, at most one a thread
    static_assert(LOADS <= THREADS, "one quad a thread");
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int oc0 = (tid >> 5) * CH;

    // What this thread loads: one quad of the planes 2t - 2 + k.
    bool inside = false;
    int source = 0, target = 0;
    if (tid < LOADS) {
        int image, ih, iw;
        if (EDGE) {
            const int p = tid / 6;
            const int r = tid - p * 6;
            const int at = piece * 32 + p;
            image = at / PAIRS;
            ih = (at - image * PAIRS) * 2 - (KH - 1) + r;
            iw = IN_W - 4;                                     // columns 60..63; the four behind them are zeros
            target = p * 52 + r * 8;
        } else {
            const int r = tid / 17;
            const int q = tid - r * 17;
            image = image0;
            ih = piece * 4 - (KH - 1) + r;
            iw = 4 * q - 4;
            target = r * PITCH + 4 * q;
        }
        inside = unsigned(ih) < unsigned(IN_H) && unsigned(iw) < unsigned(IN_W);
        source = image * int(X_STRIDE0) + ih * int(X_STRIDE3) + iw;
    }
    const int plane0 = 2 * t - 2;

    // What this thread makes: 2 rows x 4 columns x 8 channels.
    int window;
    float* to;
    {
        int image, oh, ow;
        if (EDGE) {
            const int at = piece * 32 + lane;
            image = at / PAIRS;
            oh = (at - image * PAIRS) * 2;
            ow = IN_W;
            window = lane * 52;
        } else {
            image = image0;
            oh = piece * 4 + (lane >> 4) * 2;
            ow = (lane & 15) * 4;
            window = (lane >> 4) * (2 * PITCH) + ow;
        }
        to = out + image * int(OUT_STRIDE0) + oc0 * int(OUT_STRIDE1) + 2 * t * int(OUT_STRIDE2) + oh * int(OUT_STRIDE3) + ow;
    }

    const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 first = zero, second = zero;
    // The two quads of step s (point s / 32 in the order 1, 0, 2, 3, channel s % 32).
    auto fetch = [&](const int s) {
        const int q = s >> 5;
        const int a = plane0 + (q == 0 ? 1 : q == 1 ? 0 : q);
        const int b = plane0 + (q < 2 ? 2 : 1);
        const float* from = x + source + (s & 31) * int(X_STRIDE1);
        first = zero;
        second = zero;
        if (inside && unsigned(a) < unsigned(IN_D)) first = *reinterpret_cast<const float4*>(from + a * int(X_STRIDE2));
        if (inside && unsigned(b) < unsigned(IN_D)) second = *reinterpret_cast<const float4*>(from + b * int(X_STRIDE2));
    };
    // x1 + x2, x0 - x2, x2 - x1, and x3 - x1, which is -v3.
    auto keep = [&](float* buffer, const int s) {
        if (tid < LOADS) {
            const float sign = s < 32 ? 1.f : -1.f;
            float* place = buffer + WEIGHTS + target;
            *reinterpret_cast<float4*>(place) = make_float4(fmaf(sign, second.x, first.x), fmaf(sign, second.y, first.y),
                                                            fmaf(sign, second.z, first.z), fmaf(sign, second.w, first.w));
            if (EDGE) *reinterpret_cast<float4*>(place + 4) = zero;
        }
    };

    copy_weights(smem, ready);
    fetch(0);
    keep(smem, 0);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    float acc[2][CH][4];
    #pragma unroll
    for (int r = 0; r < 2; ++r)
        #pragma unroll
        for (int o = 0; o < CH; ++o)
            #pragma unroll
            for (int j = 0; j < 4; ++j) acc[r][o][j] = 0.f;

    int current = 0;
    #pragma unroll 1
    for (int q = 0; q < 4; ++q) {
        #pragma unroll 1
        for (int ci = 0; ci < IN_C; ++ci) {
            const int next = q * IN_C + ci + 1;
            const bool more = next < 4 * IN_C;
            float* other = smem + (current ^ 1) * BUFFER;
            if (more) {
                copy_weights(other, ready + next * WEIGHTS);
                fetch(next);
            }

            const float* w = smem + current * BUFFER + oc0;
            const float* in = smem + current * BUFFER + WEIGHTS + window;
            #pragma unroll 1
            for (int kh = 0; kh < KH; ++kh) {
                float v[2][8];
                #pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float4 a = *reinterpret_cast<const float4*>(in + r * PITCH);
                    const float4 b = *reinterpret_cast<const float4*>(in + r * PITCH + 4);
                    v[r][0] = a.x; v[r][1] = a.y; v[r][2] = a.z; v[r][3] = a.w;
                    v[r][4] = b.x; v[r][5] = b.y; v[r][6] = b.z; v[r][7] = b.w;
                }
                #pragma unroll
                for (int kw = 0; kw < KW; ++kw) {
                    const float4 w0 = *reinterpret_cast<const float4*>(w + kw * OUT_C);
                    const float4 w1 = *reinterpret_cast<const float4*>(w + kw * OUT_C + 4);
                    const float f[CH] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
                    #pragma unroll
                    for (int r = 0; r < 2; ++r)
                        #pragma unroll
                        for (int o = 0; o < CH; ++o)
                            #pragma unroll
                            for (int j = 0; j < 4; ++j) acc[r][o][j] = fmaf(f[o], v[r][j + kw], acc[r][o][j]);
                }
                w += KW * OUT_C;
                in += PITCH;
            }

            if (more) keep(other, next);
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();                                   // the next buffer is full, and this one is free
            current ^= 1;
        }

        // Point 1 goes to d1, with point 0 on top to d0; point 2 is added to d0; minus points 2 and 3 to d1.
        float* plane = to + ((q == 0 || q == 3) ? int(OUT_STRIDE2) : 0);
        #pragma unroll
        for (int o = 0; o < CH; ++o) {
            #pragma unroll
            for (int r = 0; r < 2; ++r) {
                float4* line = reinterpret_cast<float4*>(plane + o * int(OUT_STRIDE1) + r * int(OUT_STRIDE3));
                float4 sum = make_float4(acc[r][o][0], acc[r][o][1], acc[r][o][2], acc[r][o][3]);
                if (q >= 2) {
                    const float4 before = *line;
                    sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z, before.w + sum.w);
                }
                *line = sum;
            }
        }
        if (q == 1 || q == 2) {
            const float factor = q == 1 ? 0.f : -1.f;
            #pragma unroll
            for (int r = 0; r < 2; ++r)
                #pragma unroll
                for (int o = 0; o < CH; ++o)
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) acc[r][o][j] = q == 1 ? 0.f : factor * acc[r][o][j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) conv_depth(const float* __restrict__ x, const float* __restrict__ ready,
                                                                   float* out) {
    __shared__ __align__(16) float smem[2 * BUFFER];
    const int block = blockIdx.x;
    if (block < STRIP_BLOCKS) {
        const int rest = block / STRIPS;
        const int image = rest / DEPTHS;
        make_tile<false>(smem, x, ready, out, rest - image * DEPTHS, image, block - rest * STRIPS);
    } else {
        const int rest = block - STRIP_BLOCKS;
        const int t = rest / EDGE_BLOCKS;
        make_tile<true>(smem, x, ready, out, t, 0, rest - t * EDGE_BLOCKS);
    }
}
