#include "problem.h"

// Three plain launches: scores = q k^T / 32 to workspace, softmax of its rows in place, out = P v.
// Both products: 128 x 128 tiles by 256 threads, 8 x 8 sums a thread (2 x 2 rectangles of 4 x 4, 64 apart), depth steps of 16
// read into registers before a step's arithmetic and stored depth-major to the other pair of buffers after it.

constexpr int HEADS = int(Q_DIM1);
constexpr int ALL_HEADS = int(Q_DIM0 * Q_DIM1);
constexpr int L = int(Q_DIM2), D = int(Q_DIM3);
constexpr int THREADS = 256;
constexpr int TM = 128, TN = 128, TK = 16;
constexpr int PITCH = 132;
constexpr int TILE = TK * PITCH;                     // floats of one operand's buffer
static_assert(L % TM == 0 && D % TN == 0 && L % TK == 0 && D % TK == 0 && L == 512 && D == 1024, "whole tiles");
static_assert(int(K_DIM2) == L && int(V_DIM2) == L && int(V_DIM3) == D && int(OUT_DIM3) == D, "shapes");

// A: rows of LDA floats, depth along a row. B: the same (B_ROWS), or a row for each depth.
template <bool B_ROWS_, int DEPTH, int LDA, int LDB>
__device__ __forceinline__ void product(const float* __restrict__ a, const float* __restrict__ b, float (&acc)[8][8],
                                        float* as, float* bs, const int m0, const int n0) {
    constexpr int STEPS = DEPTH / TK;
    const int tid = int(threadIdx.x), lane = tid & 31, warp = tid >> 5;

    // By rows: row r, chunks c and c + 2 of a step's four; a warp takes 16 rows, and its transposing stores hit all banks.
    const int r = warp * 16 + (lane >> 1), c = lane & 1;
    const float* from_a = a + r * LDA + 4 * c;
    const float* from_b = B_ROWS_ ? b + r * LDB + 4 * c : b + warp * LDB + 4 * lane;
    float* const to_a = as + 4 * c * PITCH + r;
    float* const to_b = B_ROWS_ ? bs + 4 * c * PITCH + r : bs + warp * PITCH + 4 * lane;

    float4 a0, a1, b0, b1;
    auto fetch = [&]() {
        a0 = __ldg(reinterpret_cast<const float4*>(from_a));
        a1 = __ldg(reinterpret_cast<const float4*>(from_a + 8));
        b0 = __ldg(reinterpret_cast<const float4*>(from_b));
        b1 = __ldg(reinterpret_cast<const float4*>(from_b + (B_ROWS_ ? 8 : 8 * LDB)));
        from_a += TK;
        from_b += B_ROWS_ ? TK : TK * LDB;
    };
    auto across = [](float* p, const float4 x, const float4 y) {
        p[0] = x.x; p[PITCH] = x.y; p[2 * PITCH] = x.z; p[3 * PITCH] = x.w;
        p += 8 * PITCH;
        p[0] = y.x; p[PITCH] = y.y; p[2 * PITCH] = y.z; p[3 * PITCH] = y.w;
    };
    auto put = [&](const int buffer) {
        across(to_a + buffer * TILE, a0, a1);
        if (B_ROWS_) {
            across(to_b + buffer * TILE, b0, b1);
        } else {
            *reinterpret_cast<float4*>(to_b + buffer * TILE) = b0;
            *reinterpret_cast<float4*>(to_b + buffer * TILE + 8 * PITCH) = b1;
        }
    };

    #pragma unroll
    for (int i = 0; i < 8; ++i)
        #pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.f;

    fetch();
    put(0);
    __syncthreads();

    #pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const int buffer = step & 1;
        const float* pa = as + buffer * TILE + m0;
        const float* pb = bs + buffer * TILE + n0;
        float4 x0 = *reinterpret_cast<const float4*>(pa);
        float4 x1 = *reinterpret_cast<const float4*>(pa + 64);
        float4 y0 = *reinterpret_cast<const float4*>(pb);
        float4 y1 = *reinterpret_cast<const float4*>(pb + 64);
        if (step + 1 < STEPS) fetch();
        #pragma unroll
        for (int k = 0; k < TK; ++k) {
            const float x[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
            const float y[8] = {y0.x, y0.y, y0.z, y0.w, y1.x, y1.y, y1.z, y1.w};
            if (k + 1 < TK) {                        // fragments of the next depth, while this one multiplies
                x0 = *reinterpret_cast<const float4*>(pa + (k + 1) * PITCH);
                x1 = *reinterpret_cast<const float4*>(pa + (k + 1) * PITCH + 64);
                y0 = *reinterpret_cast<const float4*>(pb + (k + 1) * PITCH);
                y1 = *reinterpret_cast<const float4*>(pb + (k + 1) * PITCH + 64);
            }
            #pragma unroll
            for (int i = 0; i < 8; ++i) {
                #pragma unroll
                for (int jj = 0; jj < 8; ++jj) {
                    const int j = (i & 1) ? 7 - jj : jj;
                    acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
                }
            }
        }
        if (step + 1 < STEPS) put(buffer ^ 1);
        __syncthreads();
    }
}

// A warp makes 4 x 8 threads' rectangles; lanes one apart share their columns, lanes two apart their rows.
__device__ __forceinline__ int first_row() {
    const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
    return ((warp >> 1) * 4 + ((lane & 1) | ((lane >> 4) << 1))) * 4;
}
__device__ __forceinline__ int first_col() {
    const int lane = int(threadIdx.x) & 31, warp = int(threadIdx.x) >> 5;
    return ((warp & 1) * 8 + ((lane >> 1) & 7)) * 4;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
make_scores(const float* __restrict__ q, const float* __restrict__ k, float* __restrict__ scores) {
    __shared__ __align__(16) float as[2 * TILE];
    __shared__ __align__(16) float bs[2 * TILE];
    const int block = int(blockIdx.x);
    const int head = block >> 4, row0 = ((block >> 2) & 3) * TM, col0 = (block & 3) * TN;
    const int m0 = first_row(), n0 = first_col();
    float acc[8][8];
    product<true, D, D, D>(q + (head * L + row0) * D, k + (head * L + col0) * D, acc, as, bs, m0, n0);

    constexpr float SCALE = 1.f / 32.f;
    float* to = scores + (head * L + row0 + m0) * L + col0 + n0;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        float* p = to + ((i & 3) + (i >> 2) * 64) * L;
        *reinterpret_cast<float4*>(p) =
            make_float4(acc[i][0] * SCALE, acc[i][1] * SCALE, acc[i][2] * SCALE, acc[i][3] * SCALE);
        *reinterpret_cast<float4*>(p + 64) =
            make_float4(acc[i][4] * SCALE, acc[i][5] * SCALE, acc[i][6] * SCALE, acc[i][7] * SCALE);
    }
}

// One warp a row of 512, last rows first: they may still be in L2.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_rows(float* scores) {
    const int lane = int(threadIdx.x) & 31;
    const int row = (int(gridDim.x) - 1 - int(blockIdx.x)) * (THREADS / 32) + (int(threadIdx.x) >> 5);
    float4* p = reinterpret_cast<float4*>(scores + row * L) + lane;
    float4 v[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = p[i * 32];
    float top = v[0].x;
    #pragma unroll
    for (int i = 0; i < 4; ++i) top = fmaxf(fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)), top);
    #pragma unroll
    for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, s));
    float sum = 0.f;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i].x = expf(v[i].x - top); v[i].y = expf(v[i].y - top);
        v[i].z = expf(v[i].z - top); v[i].w = expf(v[i].w - top);
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    #pragma unroll
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, s);
    const float scale = 1.f / sum;
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        p[i * 32] = make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
make_out(const float* __restrict__ scores, const float* __restrict__ v, float* __restrict__ out) {
    __shared__ __align__(16) float as[2 * TILE];
    __shared__ __align__(16) float bs[2 * TILE];
    const int block = int(blockIdx.x);
    const int head = block >> 5, row0 = ((block >> 3) & 3) * TM, col0 = (block & 7) * TN;
    const int m0 = first_row(), n0 = first_col();
    float acc[8][8];
    product<false, L, L, D>(scores + (head * L + row0) * L, v + head * (L * D) + col0, acc, as, bs, m0, n0);

    float* to = out + (head / HEADS) * int(OUT_STRIDE0) + (head % HEADS) * int(OUT_STRIDE1)
              + (row0 + m0) * int(OUT_STRIDE2) + col0 + n0;
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        float* p = to + ((i & 3) + (i >> 2) * 64) * int(OUT_STRIDE2);
        __stcs(reinterpret_cast<float4*>(p), make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]));
        __stcs(reinterpret_cast<float4*>(p + 64), make_float4(acc[i][4], acc[i][5], acc[i][6], acc[i][7]));
    }
}
