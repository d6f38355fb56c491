// Transposed convolution of stride 1 = correlation with flipped taps. F(2,3) along the height, seven direct taps along the
// width. A persistent block of 16 warps: 4 groups of 8 output channels x 4 transformed rows; a warp spans 256 columns,
// a thread sums 8 channels by 8 neighbouring columns of its transformed row over all input channels.
#include "problem.h"

constexpr int H = int(X_DIM2), W = int(X_DIM3), IC = int(X_DIM1), OC = int(OUT_DIM1), NB = int(X_DIM0);
constexpr int KW = int(CONV_TRANSPOSE2D_KERNEL_SIZE_1);
constexpr int THREADS = 512;
constexpr int COLS = 256;
constexpr int ICS = 8;                        // input channels of one step
constexpr int STEPS = IC / ICS;               // 4 a tile
constexpr int ODD = 37;                       // a row's 33 even vectors of 16 bytes lie first, its 33 odd ones from here on
constexpr int PITCH = (ODD + 33) * 4;         // 280 floats; vector 0 begins at column -4
constexpr int STAGE = ICS * 4 * PITCH;        // 8960 floats
constexpr int W_FLOATS = IC * 4 * KW * OC;    // 28672 floats
constexpr int EXCHANGE = 2 * 4 * COLS;        // floats of one group's exchange: 2 channels x 4 transformed rows
constexpr int COL_TILES = W / COLS, PAIRS = H / 2;
constexpr int TILES = NB * PAIRS * COL_TILES;
static_assert(CONV_TRANSPOSE2D_KERNEL_SIZE_0 == 3 && KW == 7 && IC == 32 && OC == 32 && H % 2 == 0 && W % COLS == 0, "shape");

// Where vector c of a row lies, in floats: a warp reads even and odd vectors as contiguous runs, at constant offsets of one
// address, and the threads that copy neighbouring vectors meet no bank conflict either (37 % 8 == 5).
__device__ __forceinline__ int slot(int c) { return 4 * ((c & 1) * ODD + (c >> 1)); }

__device__ __forceinline__ unsigned at(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void bar_init(unsigned bar, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void bar_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                    : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    while (!done);
}

// In place: four rows of one vector become the four transformed rows.
__device__ __forceinline__ void transform(float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p);
    const float4 b = *reinterpret_cast<const float4*>(p + PITCH);
    const float4 c = *reinterpret_cast<const float4*>(p + 2 * PITCH);
    const float4 d = *reinterpret_cast<const float4*>(p + 3 * PITCH);
    *reinterpret_cast<float4*>(p) = make_float4(a.x - c.x, a.y - c.y, a.z - c.z, a.w - c.w);
    *reinterpret_cast<float4*>(p + PITCH) = make_float4(b.x + c.x, b.y + c.y, b.z + c.z, b.w + c.w);
    *reinterpret_cast<float4*>(p + 2 * PITCH) = make_float4(c.x - b.x, c.y - b.y, c.z - b.z, c.w - b.w);
    *reinterpret_cast<float4*>(p + 3 * PITCH) = make_float4(b.x - d.x, b.y - d.y, b.z - d.z, b.w - d.w);
}

// Exchange: vectors of every second eight are swapped within pairs, so that lanes 32 bytes apart meet no bank conflict.
__device__ __forceinline__ int swizzle(int i) { return i ^ ((i >> 3) & 1); }

__device__ __forceinline__ void copy16(float* to, const float* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(unsigned(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
conv(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    extern __shared__ __align__(16) float smem[];
    float* const weights = smem;                        // [ic][t][kw][oc]
    float* const stages = smem + W_FLOATS;              // 2 x [ic][4 rows][280]
    const int tid = threadIdx.x;
    const int lane = tid & 31, warp = tid >> 5;
    const int t = warp & 3, group = warp >> 2;
    float* const exchange = stages + 2 * STAGE + group * EXCHANGE;

    const int mine = (TILES - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x);   // tiles of this block
    const int total = mine * STEPS;
    if (total <= 0) return;

    // full: all threads have copied and transformed their part of the next stage, phase s for stage s + 1.
    // empty: all have left stage s, phase s. Both are arrived at long before they are waited for, so warps may drift.
    __shared__ __align__(8) unsigned long long bars[2];
    const unsigned full = at(&bars[0]), empty = at(&bars[1]);
    if (tid == 0) {
        bar_init(full, THREADS);
        bar_init(empty, THREADS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // A thread copies the four rows of one vector of one channel, and transforms what it copied itself. The vectors left
    // and right of the tile are copied by half a warp, another warp in each stage.
    const int my_from = (tid >> 6) * int(X_STRIDE1) + 4 * (tid & 63);
    const int my_to = (tid >> 6) * (4 * PITCH) + slot((tid & 63) + 1);

    auto load = [&](int s) {
        const unsigned tile = blockIdx.x + (unsigned(s) / STEPS) * gridDim.x;
        const int x0 = int(tile % COL_TILES) * COLS;
        const unsigned rest = tile / COL_TILES;
        const int y0 = int(rest % PAIRS) * 2, n = int(rest / PAIRS);
        const float* base = x + (n * int(X_STRIDE0) + int(unsigned(s) % STEPS) * (ICS * int(X_STRIDE1)) + y0 * W + x0);
        float* stage = stages + (s & 1) * STAGE;
        const bool above = y0 > 0, below = y0 + 2 < H;
        {
            const float* from = base + my_from;
            float* to = stage + my_to;
            copy16(to, above ? from - W : x, above ? 16 : 0);
            copy16(to + PITCH, from, 16);
            copy16(to + 2 * PITCH, from + W, 16);
            copy16(to + 3 * PITCH, below ? from + 2 * W : x, below ? 16 : 0);
        }
        if (warp == (s & 15) && lane < 2 * ICS) {
            const int ic = lane >> 1;
            const bool right = lane & 1;
            const bool inside = right ? x0 + COLS < W : x0 > 0;
            const float* from = base + ic * int(X_STRIDE1) + (right ? COLS : -4);
            float* to = stage + ic * (4 * PITCH) + (right ? slot(COLS / 4 + 1) : 0);
            copy16(to, inside && above ? from - W : x, inside && above ? 16 : 0);
            copy16(to + PITCH, inside ? from : x, inside ? 16 : 0);
            copy16(to + 2 * PITCH, inside ? from + W : x, inside ? 16 : 0);
            copy16(to + 3 * PITCH, inside && below ? from + 2 * W : x, inside && below ? 16 : 0);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    auto finish = [&](int s) {   // what this thread copied has arrived: transform it
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        float* stage = stages + (s & 1) * STAGE;
        transform(stage + my_to);
        if (warp == (s & 15) && lane < 2 * ICS)
            transform(stage + (lane >> 1) * (4 * PITCH) + ((lane & 1) ? slot(COLS / 4 + 1) : 0));
    };

    load(0);

    // Filters are transformed once a block. Tap k of the correlation is tap 2 - k (6 - k) of the weight.
    for (int e = tid; e < IC * KW * OC; e += THREADS) {
        const int oc = e % OC, kw = (e / OC) % KW, ic = e / (OC * KW);
        const float* w = weight + (ic * OC + oc) * (3 * KW) + (KW - 1 - kw);
        const float g0 = __ldg(w + 2 * KW), g1 = __ldg(w + KW), g2 = __ldg(w);
        float* to = weights + (ic * 4 * KW + kw) * OC + oc;
        to[0] = g0;
        to[KW * OC] = 0.5f * ((g0 + g2) + g1);
        to[2 * KW * OC] = 0.5f * ((g0 + g2) - g1);
        to[3 * KW * OC] = g2;
    }

    float acc[8][8];
    #pragma unroll
    for (int j = 0; j < 8; ++j)
        #pragma unroll
        for (int c = 0; c < 8; ++c) acc[j][c] = 0.f;

    finish(0);
    __syncthreads();                                   // barriers, filters and the first stage are ready

    #pragma unroll 1
    for (int s = 0; s < total; ++s) {
        const int step = s % STEPS;
        const bool more = s + 1 < total;
        const float* in = stages + (s & 1) * STAGE + t * PITCH + 4 * lane;
        const float* wl = weights + step * (ICS * 4 * KW * OC) + t * (KW * OC) + group * 8;
        #pragma unroll 1
        for (int part = 0; part < ICS / 2; ++part) {
            if (more && part == 1) {
                if (s > 0) bar_wait(empty, (s - 1) & 1);
                load(s + 1);
            }
            if (more && part == 2) {
                finish(s + 1);
                bar_arrive(full);
            }
            #pragma unroll UNROLL
            for (int ic = 0; ic < 2; ++ic) {
                float v[16];
                #pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const float4 a = *reinterpret_cast<const float4*>(in + 4 * ((k & 1) * ODD + (k >> 1)));
                    v[4 * k] = a.x;
                    v[4 * k + 1] = a.y;
                    v[4 * k + 2] = a.z;
                    v[4 * k + 3] = a.w;
                }
                #pragma unroll
                for (int kw = 0; kw < KW; ++kw) {
                    const float4 p = *reinterpret_cast<const float4*>(wl + kw * OC);
                    const float4 q = *reinterpret_cast<const float4*>(wl + kw * OC + 4);
                    const float w[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
                    #pragma unroll
                    for (int j = 0; j < 8; ++j)
                        #pragma unroll
                        for (int c = 0; c < 8; ++c) acc[j][c] = fmaf(w[j], v[c + kw + 1], acc[j][c]);
                }
                in += 4 * PITCH;
                wl += 4 * KW * OC;
            }
        }
        if (s + 2 < total) bar_arrive(empty);

        if (step == STEPS - 1) {
            // The four warps of a channel group exchange their sums, two channels at a time; each thread then makes
            // one vector of both rows.
            const int tile = int(blockIdx.x) + (s / STEPS) * int(gridDim.x);
            const int x0 = (tile % COL_TILES) * COLS;
            const int rest = tile / COL_TILES;
            const int y0 = (rest % PAIRS) * 2, n = rest / PAIRS;
            const int id = t * 32 + lane;
            const int channel = id >> 6, chunk = id & 63;
            float* to = out + size_t(n) * size_t(OUT_STRIDE0) + size_t(group * 8 + channel) * size_t(OUT_STRIDE1)
                      + size_t(y0) * W + x0 + 4 * chunk;
            const float* from = exchange + channel * (4 * COLS) + 4 * swizzle(chunk);
            float* put = exchange + t * COLS;
            const int off0 = 4 * swizzle(2 * lane), off1 = 4 * swizzle(2 * lane + 1);
            #pragma unroll
            for (int p = 0; p < 4; ++p) {
                #pragma unroll
                for (int o = 0; o < 2; ++o) {
                    float* line = put + o * (4 * COLS);
                    *reinterpret_cast<float4*>(line + off0) =
                        make_float4(acc[2 * p + o][0], acc[2 * p + o][1], acc[2 * p + o][2], acc[2 * p + o][3]);
                    *reinterpret_cast<float4*>(line + off1) =
                        make_float4(acc[2 * p + o][4], acc[2 * p + o][5], acc[2 * p + o][6], acc[2 * p + o][7]);
                }
                asm volatile("bar.sync %0, 128;" :: "r"(1 + group) : "memory");
                const float4 m0 = *reinterpret_cast<const float4*>(from);
                const float4 m1 = *reinterpret_cast<const float4*>(from + COLS);
                const float4 m2 = *reinterpret_cast<const float4*>(from + 2 * COLS);
                const float4 m3 = *reinterpret_cast<const float4*>(from + 3 * COLS);
                __stcs(reinterpret_cast<float4*>(to),
                       make_float4(m0.x + m1.x + m2.x, m0.y + m1.y + m2.y, m0.z + m1.z + m2.z, m0.w + m1.w + m2.w));
                __stcs(reinterpret_cast<float4*>(to + W),
                       make_float4(m1.x - m2.x - m3.x, m1.y - m2.y - m3.y, m1.z - m2.z - m3.z, m1.w - m2.w - m3.w));
                to += 2 * OUT_STRIDE1;
                if (p < 3) asm volatile("bar.sync %0, 128;" :: "r"(1 + group) : "memory");
            }
            #pragma unroll
            for (int j = 0; j < 8; ++j)
                #pragma unroll
                for (int c = 0; c < 8; ++c) acc[j][c] = 0.f;
        }
        if (more) bar_wait(full, s & 1);
    }
}
