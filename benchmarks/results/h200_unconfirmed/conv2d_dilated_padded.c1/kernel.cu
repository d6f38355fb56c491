#include "problem.h"

// Horizontal Toom-Cook F(3,3) (points 0, 1, -1, 2, infinity) on the three column phases of the dilation, direct over the
// five kernel rows. A block: 16 filters x rows y0, y0+2, y0+4 x all 496 columns; a step is one input channel.

constexpr int CIN = int(X_DIM1);
constexpr int H = int(X_DIM2);
constexpr int W = int(X_DIM3);
constexpr int COUT = int(OUT_DIM1);
constexpr int OH = int(OUT_DIM2);
constexpr int OW = int(OUT_DIM3);
constexpr int KH = 5;

constexpr int STAGES = 3;
constexpr int THREADS = 640;
constexpr int COMPS = 5;
constexpr int FB = 16;                            // filters of a block
constexpr int ROWS = 3;                           // output rows of a block
constexpr int VROWS = ROWS + KH - 1;              // 7 input rows, two apart
constexpr int TILES = 56;                         // tiles of 9 columns
constexpr int VT = 58;                            // transformed tiles a phase
constexpr int VPITCH = 60;
constexpr int RAW_PITCH = 528;                    // columns -4 .. 523
constexpr int RAW_FLOATS = VROWS * RAW_PITCH;     // 3696
constexpr int U_FLOATS = COMPS * KH * 3 * FB;     // 1200
constexpr int STAGE_FLOATS = RAW_FLOATS + U_FLOATS;
constexpr int V_COMP = VROWS * 3 * VPITCH;        // 1260
constexpr int V_FLOATS = COMPS * V_COMP;          // 6300
constexpr int TRIPLES = (OH / 2 + ROWS - 1) / ROWS;  // 85 groups of rows a parity
static_assert(CIN == 32 && COUT == 64 && W == 512 && OW == 496 && OH % 2 == 0, "shapes");
static_assert(CONV2D_KERNEL_SIZE_0 == 5 && CONV2D_KERNEL_SIZE_1 == 9 && CONV2D_DILATION_0 == 2 && CONV2D_DILATION_1 == 3 &&
              CONV2D_PADDING_0 == 2 && CONV2D_PADDING_1 == 4, "window");
static_assert(COMPS * 8 * ROWS * 3 * TILES <= STAGES * STAGE_FLOATS + 2 * V_FLOATS, "epilogue");

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

// U[quarter][channel][component][ky][group][16]
extern "C" __global__ void __launch_bounds__(256) transform_filters(const float* __restrict__ w, float* __restrict__ u) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= COUT * CIN * KH * 3) return;
    const int o = i % COUT;
    const int rest = i / COUT;                    // (c * 5 + ky) * 3 + g
    const int kg = rest % (KH * 3), c = rest / (KH * 3);
    const float* from = w + o * (CIN * KH * 9) + c * (KH * 9) + kg * 3;
    const float a = from[0], b = from[1], d = from[2];
    float* to = u + ((o / FB) * CIN + c) * U_FLOATS + kg * FB + o % FB;
    constexpr int STEP = KH * 3 * FB;
    to[0] = 0.5f * a;
    to[STEP] = -0.5f * (a + b + d);
    to[2 * STEP] = (b - a - d) * (1.f / 6.f);
    to[3 * STEP] = (a + 2.f * b + 4.f * d) * (1.f / 6.f);
    to[4 * STEP] = d;
}

// One thread asks for the rows and filters of one channel.
__device__ __forceinline__ void load_channel(unsigned stage, unsigned bar, const float* __restrict__ x,
                                             const float* __restrict__ u, int iy0) {
    unsigned bytes = U_FLOATS * 4;
    #pragma unroll
    for (int r = 0; r < VROWS; ++r)
        if (iy0 + 2 * r >= 0 && iy0 + 2 * r < H) bytes += W * 4;
    bar_expect(bar, bytes);
    #pragma unroll
    for (int r = 0; r < VROWS; ++r)
        if (iy0 + 2 * r >= 0 && iy0 + 2 * r < H)
            bulk_load(stage + unsigned(r * RAW_PITCH + 4) * 4u, x + (iy0 + 2 * r) * W, W * 4, bar);
    bulk_load(stage + unsigned(RAW_FLOATS) * 4u, u, U_FLOATS * 4, bar);
}

__device__ __forceinline__ void transform_rows(const float* __restrict__ raw, float* __restrict__ v, int tid) {
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        const int i = tid + s * THREADS;
        if (i < VROWS * 3 * VT) {
            const int rp = i / VT, t = i - rp * VT;       // rp = row * 3 + phase
            const int row = rp / 3, p = rp - row * 3;
            const float* d = raw + row * RAW_PITCH + 9 * t + p;
            const float d0 = d[0], d1 = d[3], d2 = d[6], d3 = d[9], d4 = d[12];
            const float a = d3 - d1;
            float* to = v + rp * VPITCH + t;
            to[0] = fmaf(2.f, d0 - d2, a);
            to[V_COMP] = a - (d1 + d2);
            to[2 * V_COMP] = fmaf(3.f, d1 - d2, a);
            to[3 * V_COMP] = a;
            to[4 * V_COMP] = fmaf(-2.f, a, d4 - d2);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv(const float* __restrict__ x, const float* __restrict__ u, float* __restrict__ out) {
    extern __shared__ __align__(128) float shared[];
    __shared__ __align__(8) unsigned long long bars[STAGES];
    float* const vbuf = shared + STAGES * STAGE_FLOATS;

    const int tid = int(threadIdx.x);
    const int warp = tid / 32;
    const int comp = warp / 4;
    const int fg = (warp / 2) % 2;                        // filters fg*8 .. fg*8+7 of the block's 16
    const int item = (warp % 2) * 32 + tid % 32;          // 63 of 64 are used
    const int m = min(item, 62);
    const int rp_own = m / 7;                             // output row * 3 + phase
    const int grp = m % 7;                                // tiles grp*8 .. grp*8+7

    const int quarter = int(blockIdx.x);
    const int y0 = int(blockIdx.y) / TRIPLES + (int(blockIdx.y) % TRIPLES) * (2 * ROWS);
    const int n = int(blockIdx.z);
    const int iy0 = y0 - 2;
    const float* xn = x + n * int(X_STRIDE0);
    const float* un = u + quarter * (CIN * U_FLOATS);

    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) bar_init(at(&bars[s]), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
        for (int s = 0; s < STAGES; ++s)
            load_channel(at(shared + s * STAGE_FLOATS), at(&bars[s]), xn + s * int(X_STRIDE1), un + s * U_FLOATS, iy0);
    }
    // What no copy writes is zero: columns outside of the image, and rows outside of it.
    for (int i = tid; i < STAGES * RAW_FLOATS; i += THREADS) {
        const int s = i / RAW_FLOATS, k = i % RAW_FLOATS;
        const int row = k / RAW_PITCH, col = k % RAW_PITCH;
        const int iy = iy0 + 2 * row;
        if (col < 4 || col >= 4 + W || iy < 0 || iy >= H) shared[s * STAGE_FLOATS + k] = 0.f;
    }
    __syncthreads();

    float acc[8][8];
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;

    bar_wait(at(&bars[0]), 0);
    transform_rows(shared, vbuf, tid);
    __syncthreads();

    int slot = 0;                                         // stage of channel c
    unsigned phase = 0;                                   // its parity
    #pragma unroll 1
    for (int c = 0; c < CIN; ++c) {
        const int next = slot == STAGES - 1 ? 0 : slot + 1;
        const unsigned next_phase = slot == STAGES - 1 ? phase ^ 1u : phase;
        if (c + 1 < CIN) {
            bar_wait(at(&bars[next]), next_phase);
            transform_rows(shared + next * STAGE_FLOATS, vbuf + ((c + 1) & 1) * V_FLOATS, tid);
        }

        const float* vs = vbuf + (c & 1) * V_FLOATS + comp * V_COMP + rp_own * VPITCH + grp * 8;
        const float* us = shared + slot * STAGE_FLOATS + RAW_FLOATS + comp * (KH * 3 * FB) + fg * 8;
        #pragma unroll UNROLL_ROWS
        for (int ky = 0; ky < KH; ++ky) {
            float v[10];
            {
                const float4 a = *reinterpret_cast<const float4*>(vs + ky * (3 * VPITCH));
                const float4 b = *reinterpret_cast<const float4*>(vs + ky * (3 * VPITCH) + 4);
                const float2 e = *reinterpret_cast<const float2*>(vs + ky * (3 * VPITCH) + 8);
                v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
                v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
                v[8] = e.x; v[9] = e.y;
            }
            #pragma unroll
            for (int g = 0; g < 3; ++g) {
                const float4 w0 = *reinterpret_cast<const float4*>(us + (ky * 3 + g) * FB);
                const float4 w1 = *reinterpret_cast<const float4*>(us + (ky * 3 + g) * FB + 4);
                const float w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
                #pragma unroll
                for (int i = 0; i < 8; ++i)
                    #pragma unroll
                    for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(w[i], v[j + g], acc[i][j]);
            }
        }
        __syncthreads();                                  // V and this stage are used up
        if (tid == 0 && c + STAGES < CIN)
            load_channel(at(shared + slot * STAGE_FLOATS), at(&bars[slot]), xn + (c + STAGES) * int(X_STRIDE1),
                         un + (c + STAGES) * U_FLOATS, iy0);
        slot = next;
        phase = next_phase;
    }

    // The components meet: S[component][filter of 8][row][phase][tile], 8 filters at a time.
    constexpr int S_FILTER = ROWS * 3 * TILES;            // 504
    constexpr int S_COMP = 8 * S_FILTER;                  // 4032
    #pragma unroll 1
    for (int e = 0; e < 2; ++e) {
        if (fg == e && item < 63) {
            float* to = shared + comp * S_COMP + rp_own * TILES + grp * 8;
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                *reinterpret_cast<float4*>(to + i * S_FILTER) = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
                *reinterpret_cast<float4*>(to + i * S_FILTER + 4) = make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]);
            }
        }
        __syncthreads();
        for (int i = tid; i < S_COMP; i += THREADS) {
            const int fr = i / (3 * TILES), tp = i % (3 * TILES);   // fr = filter * 3 + row
            const int t = tp / 3, p = tp % 3;
            const int f = fr / ROWS, r = fr % ROWS;
            const float* s = shared + fr * (3 * TILES) + p * TILES + t;
            const float m0 = s[0], m1 = s[S_COMP], m2 = s[2 * S_COMP], m3 = s[3 * S_COMP], m4 = s[4 * S_COMP];
            const float sum = m1 + m2, dif = m1 - m2;
            const int y = y0 + 2 * r;
            if (y < OH) {
                const int col = 9 * t + p;
                float* to = out + ((n * COUT + quarter * FB + e * 8 + f) * OH + y) * OW + col;
                if (col < OW) to[0] = (m0 + m3) + sum;
                if (col + 3 < OW) to[3] = fmaf(2.f, m3, dif);
                if (col + 6 < OW) to[6] = fmaf(4.f, m3, sum) + m4;
            }
        }
        __syncthreads();
    }
}
