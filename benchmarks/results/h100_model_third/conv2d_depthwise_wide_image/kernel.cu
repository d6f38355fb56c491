#include "problem.h"

// The input is one stream of pieces of ROWS whole rows (two pieces of 8 make a strip of 16). Every block walks over a
// contiguous range of pieces that a ring of bulk copies brings. Thread c owns columns 4c ... 4c + 3; instead of keeping the two
// rows before a piece in the ring, it carries the partial sums of two output rows from piece to piece in registers, so that
// each input row is read once. Piece k of a plane makes output rows k * ROWS - 2 ... k * ROWS + ROWS - 3 (the first one rows
// 0 ... ROWS - 3); they are packed with the output's pitch in one of two buffers and leave by one bulk store.

constexpr int STAGES = 3;
constexpr int IN_W = int(X_DIM3);
constexpr int OUT_W = int(OUT_DIM3);
constexpr int LANES = IN_W / 4;                              // 128 threads
constexpr int PIECES = int(X_DIM2) / ROWS;                   // of a plane
constexpr int ALL = int(X_DIM0) * int(X_DIM1) * PIECES;
constexpr int CHANNELS = int(X_DIM1);
constexpr int PIECE = ROWS * IN_W;                           // floats
constexpr int PACKED = ROWS * OUT_W;                         // floats
constexpr unsigned PIECE_BYTES = unsigned(PIECE) * 4u;
constexpr int BATCH_ROWS = 4;                                // rows read from shared memory before the first is used
static_assert(int(X_DIM2) % ROWS == 0 && ROWS % BATCH_ROWS == 0 && ROWS > 2, "whole pieces");
static_assert(LANES == 128 && OUT_W == IN_W - 2 && OUT_DIM2 == X_DIM2 - 2, "row ends");
static_assert((2 * OUT_W) % 4 == 0 && OUT_STRIDE1 % 4 == 0, "row pairs begin at multiples of 16 bytes");
static_assert(CONV2D_KERNEL_SIZE_0 == 3 && CONV2D_KERNEL_SIZE_1 == 3, "taps");

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
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

struct Six { float v[6]; };

__device__ __forceinline__ Six six(const float* row, int own, int right) {
    const float4 p = *reinterpret_cast<const float4*>(row + own);
    const float2 q = *reinterpret_cast<const float2*>(row + right);
    return Six{{p.x, p.y, p.z, p.w, q.x, q.y}};
}

struct Four { float v[4]; };

__device__ __forceinline__ Four taps3(const Four& sum, const Six& in, float w0, float w1, float w2) {
    Four r;
    #pragma unroll
    for (int c = 0; c < 4; ++c) r.v[c] = fmaf(w2, in.v[c + 2], fmaf(w1, in.v[c + 1], fmaf(w0, in.v[c], sum.v[c])));
    return r;
}

extern "C" __global__ void __launch_bounds__(128)
depthwise_3x3(const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out) {
    extern __shared__ __align__(128) float shared[];         // STAGES pieces of input, then two packed pieces of output
    __shared__ __align__(8) unsigned long long bars[STAGES];
    float* packed = shared + STAGES * PIECE;
    const int c = int(threadIdx.x);
    const int own = 4 * c;
    const int right = 4 * min(c + 1, LANES - 1);             // clamped: columns 510 and 511 are not kept
    const Four zero = Four{{0.f, 0.f, 0.f, 0.f}};

    const int first = int((long long)blockIdx.x * ALL / BLOCKS);
    const int count = int((long long)(blockIdx.x + 1) * ALL / BLOCKS) - first;
    const float* from = x + (long long)first * PIECE;

    if (c == 0) {
        for (int s = 0; s < STAGES; ++s) bar_init(at(&bars[s]), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (c == 0) {
        for (int s = 0; s < STAGES; ++s) {
            if (s < count) {
                bar_expect(at(&bars[s]), PIECE_BYTES);
                bulk_load(at(shared + s * PIECE), from + (long long)s * PIECE, PIECE_BYTES, at(&bars[s]));
            }
        }
    }

    int plane = first / PIECES;
    int k = first - plane * PIECES;                          // piece within its plane
    float w[9];
    {
        const float* filter = weight + (plane % CHANNELS) * int(CONV2D_WEIGHT_STRIDE0);
        #pragma unroll
        for (int t = 0; t < 9; ++t) w[t] = __ldg(filter + t);
    }
    Four a = zero;                                           // two of three rows are in
    Four b = zero;                                           // one of three rows is in
    if (k > 0 && count > 0) {                                // begun within a plane: the two rows before
        const Six p0 = six(from - 2 * IN_W, own, right);
        const Six p1 = six(from - IN_W, own, right);
        a = taps3(taps3(zero, p0, w[0], w[1], w[2]), p1, w[3], w[4], w[5]);
        b = taps3(zero, p1, w[0], w[1], w[2]);
    }

    int s = 0;
    unsigned parity = 0;
    for (int i = 0; i < count; ++i) {
        const float* in = shared + s * PIECE;
        float* results = packed + (i & 1) * PACKED;
        bar_wait(at(&bars[s]), parity);
        #pragma unroll
        for (int g = 0; g < ROWS; g += BATCH_ROWS) {
            Six v[BATCH_ROWS];
            #pragma unroll
            for (int j = 0; j < BATCH_ROWS; ++j) v[j] = six(in + (g + j) * IN_W, own, right);
            #pragma unroll
            for (int j = 0; j < BATCH_ROWS; ++j) {
                const Four done = taps3(a, v[j], w[6], w[7], w[8]);
                a = taps3(b, v[j], w[3], w[4], w[5]);
                b = taps3(zero, v[j], w[0], w[1], w[2]);
                float* to = results + (g + j) * OUT_W + own; // the first two rows of a plane's first piece are not sent
                if (j % 2 == 0 && c < LANES - 1) {           // even rows begin at a multiple of 16 bytes
                    *reinterpret_cast<float4*>(to) = make_float4(done.v[0], done.v[1], done.v[2], done.v[3]);
                } else {
                    *reinterpret_cast<float2*>(to) = make_float2(done.v[0], done.v[1]);
                    if (c < LANES - 1) *reinterpret_cast<float2*>(to + 2) = make_float2(done.v[2], done.v[3]);
                }
            }
        }
        asm volatile("fence.proxy.async;" ::: "memory");
        // The store of piece i - 1 has read its buffer before anyone passes the barrier and fills it with piece i + 1.
        if (c == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncthreads();
        if (c == 0) {
            const int skip = k == 0 ? 2 : 0;
            bulk_store(out + (long long)plane * OUT_STRIDE1 + (k * ROWS - 2 + skip) * OUT_W, at(results + skip * OUT_W),
                       unsigned((ROWS - skip) * OUT_W * 4));
            if (i + STAGES < count) {                        // all have read stage s
                bar_expect(at(&bars[s]), PIECE_BYTES);
                bulk_load(at(shared + s * PIECE), from + (long long)(i + STAGES) * PIECE, PIECE_BYTES, at(&bars[s]));
            }
        }
        if (++s == STAGES) {
            s = 0;
            parity ^= 1u;
        }
        if (++k == PIECES) {
            k = 0;
            ++plane;
            a = zero;
            b = zero;
            if (i + 1 < count) {
                const float* filter = weight + (plane % CHANNELS) * int(CONV2D_WEIGHT_STRIDE0);
                #pragma unroll
                for (int t = 0; t < 9; ++t) w[t] = __ldg(filter + t);
            }
        }
    }
    if (c == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
