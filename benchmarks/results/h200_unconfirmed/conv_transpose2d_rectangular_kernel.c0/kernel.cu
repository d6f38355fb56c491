#include "problem.h"

// Full correlation with flipped taps; a thread makes 8 output channels x 8 neighbouring pixels of a row.
// The block is 16 warps (64 channels x 4 rows x 128 columns) and not 13: warps are dealt to the SM's four schedulers in
// turn, so that 13 of them at one block an SM load the schedulers 4:3:3:3, and a fifth of the FMA rate is lost. The first
// 512 columns are 4 such blocks a strip; the last 6 columns are made by blocks of the same size and code with 64 rows of
// one column group. Everything else is as the strategy says: reordered taps, three stages of cp.async, one barrier a step.

constexpr int THREADS = 512;
constexpr int IN_C = int(X_DIM1), OUT_C = int(OUT_DIM1), IN_H = int(X_DIM2), IN_W = int(X_DIM3);
constexpr int OUT_H = int(OUT_DIM2), OUT_W = int(OUT_DIM3), BATCH = int(X_DIM0);
constexpr int KH = int(CONV_TRANSPOSE2D_KERNEL_SIZE_0), KW = int(CONV_TRANSPOSE2D_KERNEL_SIZE_1);
constexpr int CH = 8, COLS = 8;
constexpr int STAGES = 3;
constexpr int STEPS = IN_C / KC;
constexpr int TAPS = KC * KH * KW * OUT_C;                     // floats of a stage's taps
constexpr int SLAB = 1056;                                     // floats of a channel's inputs: 6 x 140 or 66 x 16
constexpr int STAGE = TAPS + KC * SLAB;
constexpr int STRIPS = (OUT_H + 3) / 4;                        // 129
constexpr int WIDE_BLOCKS = BATCH * STRIPS * 4;
constexpr int TALL_STRIPS = (OUT_H + 63) / 64;                 // 9

static_assert(KH == 3 && KW == 7 && OUT_C == 64 && IN_C % KC == 0 && STEPS >= 2, "3x7, 64 channels");
static_assert(IN_W == 512 && OUT_W == IN_W + KW - 1 && OUT_H == IN_H + KH - 1, "stride 1, no padding");
static_assert(int(CONV_TRANSPOSE2D_STRIDE_0) == 1 && int(CONV_TRANSPOSE2D_STRIDE_1) == 1 && int(CONV_TRANSPOSE2D_PADDING_0) == 0
              && int(CONV_TRANSPOSE2D_PADDING_1) == 0 && int(CONV_TRANSPOSE2D_DILATION_0) == 1
              && int(CONV_TRANSPOSE2D_DILATION_1) == 1 && int(CONV_TRANSPOSE2D_GROUPS) == 1, "plain");

// [ic][kh][kw][oc], flipped.
extern "C" __global__ void reorder_taps(const float* __restrict__ weight, float* __restrict__ ready) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= IN_C * OUT_C * KH * KW) return;
    const int oc = i & 63;
    const int rest = i >> 6;
    const int ic = rest / (KH * KW);
    const int tap = rest - ic * (KH * KW);
    ready[i] = weight[ic * int(CONV_TRANSPOSE2D_WEIGHT_STRIDE0) + oc * int(CONV_TRANSPOSE2D_WEIGHT_STRIDE1) + (KH * KW - 1 - tap)];
}

__device__ __forceinline__ void copy16(unsigned to, const float* from, int bytes) {   // zeros where bytes is 0
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

// ROWS output rows by GROUPS groups of 8 columns: 64 pieces of 8 pixels for each of the 8 channel groups.
template <int ROWS, int GROUPS, int PITCH>
__device__ __forceinline__ void load_step(unsigned stage, const float* __restrict__ x, const float* __restrict__ ready, int step,
                                          int image, int oh0, int ow0) {
    constexpr int IN_ROWS = ROWS + KH - 1;
    constexpr int QUADS = 2 * GROUPS + 2;
    static_assert(IN_ROWS * PITCH <= SLAB && 4 * QUADS <= PITCH && ROWS * GROUPS == 64, "fits");
    const float* taps = ready + step * TAPS;
    for (int i = threadIdx.x; i < TAPS / 4; i += THREADS) copy16(stage + unsigned(i) * 16u, taps + 4 * i, 16);
    const float* plane = x + (image * IN_C + step * KC) * (IN_H * IN_W);
    for (int i = threadIdx.x; i < KC * IN_ROWS * QUADS; i += THREADS) {
        const int c = i / (IN_ROWS * QUADS);
        const int in_plane = i - c * (IN_ROWS * QUADS);
        const int r = in_plane / QUADS;
        const int q = in_plane - r * QUADS;
        const int ih = oh0 - (KH - 1) + r;
        const int iw = ow0 - 8 + 4 * q;
        const bool inside = unsigned(ih) < unsigned(IN_H) && unsigned(iw) < unsigned(IN_W);
        copy16(stage + unsigned(TAPS + c * SLAB + r * PITCH + 4 * q) * 4u,
               plane + (inside ? c * (IN_H * IN_W) + ih * IN_W + iw : 0), inside ? 16 : 0);
    }
}

template <int ROWS, int GROUPS, int PITCH>
__device__ __forceinline__ void make_tile(float* smem, const float* __restrict__ x, const float* __restrict__ ready,
                                          float* __restrict__ out, int image, int oh0, int ow0) {
    const unsigned smem_at = unsigned(__cvta_generic_to_shared(smem));
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int oc0 = (warp & 7) * CH;
    // Wide tiles: eight lanes in a row are 4 column groups x 2 rows, an odd number of quads apart: no bank conflicts.
    const int g = GROUPS == 1 ? 0 : (lane & 3) | ((lane >> 3) << 2);
    const int row = GROUPS == 1 ? (warp >> 3) * 32 + lane : (warp >> 3) * 2 + ((lane >> 2) & 1);

    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        load_step<ROWS, GROUPS, PITCH>(smem_at + unsigned(s * STAGE) * 4u, x, ready, s, image, oh0, ow0);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    float acc[CH][COLS];
    #pragma unroll
    for (int o = 0; o < CH; ++o) {
        #pragma unroll
        for (int j = 0; j < COLS; ++j) acc[o][j] = 0.f;
    }

    int stage = 0;
    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();                                       // this stage is here; the one before is no longer read
        if (step + STAGES - 1 < STEPS) {
            const int to = stage == 0 ? STAGES - 1 : stage - 1;
            load_step<ROWS, GROUPS, PITCH>(smem_at + unsigned(to * STAGE) * 4u, x, ready, step + STAGES - 1, image, oh0, ow0);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");

        const float* w = smem + stage * STAGE + oc0;
        const float* plane = smem + stage * STAGE + TAPS + row * PITCH + g * COLS;
        #pragma unroll 1
        for (int c = 0; c < KC; ++c) {
            const float* in = plane;
            #pragma unroll 1
            for (int kh = 0; kh < KH; ++kh) {
                float v[16];                                   // from column ow - 8 on; taps begin at ow - 6
                #pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const float4 t = *reinterpret_cast<const float4*>(in + 4 * q);
                    v[4 * q] = t.x; v[4 * q + 1] = t.y; v[4 * q + 2] = t.z; v[4 * q + 3] = t.w;
                }
                #pragma unroll
                for (int kw = 0; kw < KW; ++kw) {
                    const float4 w0 = *reinterpret_cast<const float4*>(w + kw * OUT_C);
                    const float4 w1 = *reinterpret_cast<const float4*>(w + kw * OUT_C + 4);
                    const float f[CH] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
                    #pragma unroll
                    for (int o = 0; o < CH; ++o) {
                        #pragma unroll
                        for (int j = 0; j < COLS; ++j) acc[o][j] = fmaf(f[o], v[j + kw + 2], acc[o][j]);
                    }
                }
                w += KW * OUT_C;
                in += PITCH;
            }
            plane += SLAB;
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");

    const int oh = oh0 + row;
    if (oh < OUT_H) {
        const int ow = ow0 + g * COLS;
        float* to = out + image * int(OUT_STRIDE0) + oc0 * int(OUT_STRIDE1) + oh * int(OUT_STRIDE2) + ow;
        #pragma unroll
        for (int o = 0; o < CH; ++o) {
            float2* line = reinterpret_cast<float2*>(to + o * int(OUT_STRIDE1));   // rows are of even length
            #pragma unroll
            for (int j = 0; j < COLS / 2; ++j) {
                if (ow + 2 * j < OUT_W) line[j] = make_float2(acc[o][2 * j], acc[o][2 * j + 1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) conv_full(const float* __restrict__ x, const float* __restrict__ ready,
                                                                  float* __restrict__ out) {
    extern __shared__ __align__(16) float smem[];
    const int block = blockIdx.x;
    if (block < WIDE_BLOCKS) {
        const int rest = block >> 2;
        const int image = rest / STRIPS;
        make_tile<4, 16, 140>(smem, x, ready, out, image, (rest - image * STRIPS) * 4, (block & 3) * 128);
    } else {
        const int rest = block - WIDE_BLOCKS;
        const int image = rest / TALL_STRIPS;
        make_tile<64, 1, 16>(smem, x, ready, out, image, (rest - image * TALL_STRIPS) * 64, IN_W);
    }
}
