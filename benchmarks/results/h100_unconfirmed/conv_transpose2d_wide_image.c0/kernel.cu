#include "problem.h"
// Winograd F(2x2, 3x3). The transposed convolution is a correlation with the flipped filter of an input padded by two.
// 512 threads = two half-blocks of 256; each takes 32 tiles of 2x2 outputs (2 x 16 tiles) for all 32 output channels.
// V[16][32 channels][32 tiles] and M[16][32 outputs][32 tiles] share one 64 KiB buffer of the half-block; U[16][32][32] is the block's.

constexpr int C = int(CONV_TRANSPOSE2D_IN_CHANNELS), O = int(CONV_TRANSPOSE2D_OUT_CHANNELS);
constexpr int XH = int(X_DIM2), XW = int(X_DIM3), OH = int(OUT_DIM2), OW = int(OUT_DIM3);
constexpr int XS1 = int(X_STRIDE1), OS1 = int(OUT_STRIDE1);
constexpr int NX = (OW / 2 + 15) / 16, NY = (OH / 2 + 1) / 2, ITEMS = NX * NY * int(OUT_DIM0);
constexpr int PLANE = 32 * 32;
static_assert(C == 32 && O == 32 && OW % 2 == 0 && OH % 2 == 0 && XW % 2 == 0, "shapes");

struct Item { int b, h, w; };   // image, first output row and column of the 2 x 16 tiles
__device__ __forceinline__ Item item_of(int item) {
    const int b = item / (NX * NY), rest = item % (NX * NY);
    return {b, rest / NX * 4, rest % NX * 32};
}
__device__ __forceinline__ void half_sync(int g) { asm volatile("bar.sync %0, 256;" :: "r"(1 + g) : "memory"); }

// The 4x4 patches of this lane's tile in four channels.
__device__ __forceinline__ void load_patches(float2 (&d)[4][4][2], const float* __restrict__ x, Item t, int warp, int lane) {
    const int ih = t.h + lane / 16 * 2 - 2, iw = t.w + lane % 16 * 2 - 2;
    const float* p = x + (long long)t.b * X_STRIDE0 + (warp * XS1 + ih * XW + iw);
    const bool left = iw >= 0 && iw < XW, right = iw + 2 < XW;
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool row = ih + i >= 0 && ih + i < XH;
            d[j][i][0] = make_float2(0.f, 0.f);
            d[j][i][1] = make_float2(0.f, 0.f);
            if (row && left) d[j][i][0] = __ldg(reinterpret_cast<const float2*>(p + i * XW));
            if (row && right) d[j][i][1] = __ldg(reinterpret_cast<const float2*>(p + i * XW + 2));
        }
        p += 8 * XS1;
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) winograd(const float* __restrict__ x, const float* __restrict__ weight,
                                                              float* __restrict__ out) {
    extern __shared__ __align__(16) float smem[];
    float* U = smem;
    const int g = threadIdx.x / 256, tid = threadIdx.x % 256, warp = tid / 32, lane = tid % 32;
    float* V = smem + 16 * PLANE * (1 + g);

    // U = G g G^T of the flipped filters, one (channel, output) pair at a time.
    for (int i = threadIdx.x; i < C * O; i += 512) {
        const float* w = weight + i * 9;          // i = channel * 32 + output
        float t[4][3];
        #pragma unroll
        for (int s = 0; s < 3; ++s) {
            const float g0 = w[8 - s], g1 = w[5 - s], g2 = w[2 - s];   // flipped: [2 - r][2 - s]
            t[0][s] = g0;
            t[1][s] = 0.5f * (g0 + g2 + g1);
            t[2][s] = 0.5f * (g0 + g2 - g1);
            t[3][s] = g2;
        }
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
            U[(4 * r + 0) * PLANE + i] = t[r][0];
            U[(4 * r + 1) * PLANE + i] = 0.5f * (t[r][0] + t[r][2] + t[r][1]);
            U[(4 * r + 2) * PLANE + i] = 0.5f * (t[r][0] + t[r][2] - t[r][1]);
            U[(4 * r + 3) * PLANE + i] = t[r][2];
        }
    }
    __syncthreads();

    // Of the products: frequency f, 8 outputs (two groups of 4) x 8 tiles (two groups of 4); odd frequencies begin with the
    // other half, so that the two frequencies of a warp use different banks.
    const int f = tid / 16, og = tid / 4 % 4, tg = tid % 4, par = f & 1;
    const int oA = 4 * og + 16 * par, oB = oA ^ 16, tA = 4 * tg + 16 * par, tB = tA ^ 16;
    const float* up = U + f * PLANE;
    const float* vp = V + f * PLANE;
    float* mp = V + f * PLANE;
    const int swz = 16 * (og & 1);

    const int stride = 2 * gridDim.x;
    int item = 2 * blockIdx.x + g;
    float2 d[4][4][2];
    if (item < ITEMS) load_patches(d, x, item_of(item), warp, lane);

    for (; item < ITEMS; item += stride) {
        // Input transform: this warp's channels are warp, warp + 8, ...
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            float t[4][4];
            #pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float d0 = c & 1 ? d[j][0][c / 2].y : d[j][0][c / 2].x;
                const float d1 = c & 1 ? d[j][1][c / 2].y : d[j][1][c / 2].x;
                const float d2 = c & 1 ? d[j][2][c / 2].y : d[j][2][c / 2].x;
                const float d3 = c & 1 ? d[j][3][c / 2].y : d[j][3][c / 2].x;
                t[0][c] = d0 - d2; t[1][c] = d1 + d2; t[2][c] = d2 - d1; t[3][c] = d1 - d3;
            }
            float* to = V + (warp + 8 * j) * 32 + lane;
            #pragma unroll
            for (int r = 0; r < 4; ++r) {
                to[(4 * r + 0) * PLANE] = t[r][0] - t[r][2];
                to[(4 * r + 1) * PLANE] = t[r][1] + t[r][2];
                to[(4 * r + 2) * PLANE] = t[r][2] - t[r][1];
                to[(4 * r + 3) * PLANE] = t[r][1] - t[r][3];
            }
        }
        half_sync(g);

        const int next = item + stride;
        if (next < ITEMS && tid < C * 6) {       // the next tiles' rows on their way into L2
            const Item n = item_of(next);
            const int row = n.h - 2 + tid % 6;
            if (row >= 0 && row < XH && n.w < XW) {
                const float* p = x + (long long)n.b * X_STRIDE0 + (tid / 6 * XS1 + row * XW + n.w);
                asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
            }
        }

        float acc[8][8];
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            #pragma unroll
            for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;
        #pragma unroll 4
        for (int k = 0; k < 32; ++k) {
            const float4 a0 = *reinterpret_cast<const float4*>(up + k * 32 + oA);
            const float4 a1 = *reinterpret_cast<const float4*>(up + k * 32 + oB);
            const float4 b0 = *reinterpret_cast<const float4*>(vp + k * 32 + tA);
            const float4 b1 = *reinterpret_cast<const float4*>(vp + k * 32 + tB);
            const float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
            const float b[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
            #pragma unroll
            for (int i = 0; i < 8; ++i)
                #pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
        }
        half_sync(g);                            // all have read V: it becomes M

        // M[f][o][t ^ 16 * ((o / 4) & 1)]: neighbouring groups of outputs use different banks
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            float* to = mp + ((i < 4 ? oA : oB) + (i & 3)) * 32;
            *reinterpret_cast<float4*>(to + (tA ^ swz)) = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
            *reinterpret_cast<float4*>(to + (tB ^ swz)) = make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
        }
        if (next < ITEMS) load_patches(d, x, item_of(next), warp, lane);
        half_sync(g);

        // Inverse transform and stores: outputs warp, warp + 8, ...
        const Item t = item_of(item);
        const int h = t.h + lane / 16 * 2, w = t.w + lane % 16 * 2;
        const bool inside = h < OH && w < OW;
        float* op = out + (long long)t.b * OUT_STRIDE0 + (warp * OS1 + h * OW + w);
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int o = warp + 8 * j;
            const float* from = V + o * 32 + (lane ^ (16 * ((o >> 2) & 1)));
            float s0[4], s1[4];
            #pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float m0 = from[c * PLANE], m1 = from[(4 + c) * PLANE], m2 = from[(8 + c) * PLANE], m3 = from[(12 + c) * PLANE];
                s0[c] = m0 + m1 + m2;
                s1[c] = m1 - m2 - m3;
            }
            if (inside) {
                *reinterpret_cast<float2*>(op) = make_float2(s0[0] + s0[1] + s0[2], s0[1] - s0[2] - s0[3]);
                *reinterpret_cast<float2*>(op + OW) = make_float2(s1[0] + s1[1] + s1[2], s1[1] - s1[2] - s1[3]);
            }
            op += 8 * OS1;
        }
        half_sync(g);                            // M is read: the buffer takes the next V
    }
}
