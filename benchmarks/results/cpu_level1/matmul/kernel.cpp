// Matrix product: (1024 x 1024) (1024 x 1024)
// Techniques: threads(schedule=static), simd(width=16), cache_blocking(block_m=96, block_n=1024, block_k=256), micro_kernel(rows=8, vectors=2), packing(operands=b), loop_unrolling(factor=4)
#include "problem.h"

constexpr long long K_BATCHES = 1LL;
constexpr long long K_M = 1024LL;
constexpr long long K_N = 1024LL;
constexpr long long K_K = 1024LL;

constexpr long long K_MR = 8LL;
constexpr long long K_NR = 32LL;
constexpr long long K_KC = 256LL;
constexpr long long K_MC = 96LL;
constexpr long long K_NC = 1024LL;

#define FN_INF __builtin_inff()
#define FN_NAN __builtin_nanf("")
struct Scalar { static constexpr int width = 1; };
static inline float load(Scalar, const float* p) { return *p; }
static inline float splat(Scalar, float value) { return value; }
static inline void store(float* p, float value) { *p = value; }

// simd: 16 floats at a time, as a vector type of the compiler
#define SIMD 16
typedef float vf __attribute__((vector_size(4 * SIMD)));
typedef float vf_unaligned __attribute__((vector_size(4 * SIMD), aligned(4), may_alias));
typedef int vi __attribute__((vector_size(4 * SIMD)));
struct Vector { static constexpr int width = SIMD; };
static inline vf load(Vector, const float* p) { return *(const vf_unaligned*)p; }
static inline vf splat(Vector, float value) { return vf{} + value; }
static inline vf splat(float value) { return vf{} + value; }
static inline vf as_vector(vf value) { return value; }
static inline vf as_vector(float value) { return splat(value); }
static inline void store(float* p, vf value) { *(vf_unaligned*)p = value; }
#define LANE_BY_LANE(name, function) \
    static inline vf name(vf x) { vf y; for (int i = 0; i < SIMD; ++i) y[i] = function(x[i]); return y; }
LANE_BY_LANE(fn_sqrt, __builtin_sqrtf)

// packing: ROWS lines of an operand, element (line, k) at from[line * line_stride + k * k_stride], stored k by k;
// lines beyond `lines` are zero.
template <int ROWS>
static inline void pack_panel(const float* from, long long line_stride, long long k_stride, long long lines,
                              long long depth, float* to) {
    if (lines == ROWS && line_stride == 1) {
        for (long long k = 0; k < depth; ++k)
            for (int line = 0; line < ROWS; ++line) to[k * ROWS + line] = from[line + k * k_stride];
        return;
    }
    for (int line = 0; line < ROWS; ++line)
        for (long long k = 0; k < depth; ++k)
            to[k * ROWS + line] = line < lines ? from[line * line_stride + k * k_stride] : 0.0f;
}

// micro_kernel: a K_MR by K_NR rectangle of the result in 16 vector registers
static inline void micro_kernel(const float* a, long long line_stride, long long k_stride, const float* b, long long depth, float* tile) {
    vf c0_0 = {}, c0_1 = {};
    vf c1_0 = {}, c1_1 = {};
    vf c2_0 = {}, c2_1 = {};
    vf c3_0 = {}, c3_1 = {};
    vf c4_0 = {}, c4_1 = {};
    vf c5_0 = {}, c5_1 = {};
    vf c6_0 = {}, c6_1 = {};
    vf c7_0 = {}, c7_1 = {};
    #pragma GCC unroll 4
    for (long long k = 0; k < depth; ++k) {
        const vf b0 = load(Vector{}, b + k * K_NR + 0 * SIMD);
        const vf b1 = load(Vector{}, b + k * K_NR + 1 * SIMD);
        const float a0 = a[0 * line_stride + k * k_stride]; c0_0 += a0 * b0; c0_1 += a0 * b1;
        const float a1 = a[1 * line_stride + k * k_stride]; c1_0 += a1 * b0; c1_1 += a1 * b1;
        const float a2 = a[2 * line_stride + k * k_stride]; c2_0 += a2 * b0; c2_1 += a2 * b1;
        const float a3 = a[3 * line_stride + k * k_stride]; c3_0 += a3 * b0; c3_1 += a3 * b1;
        const float a4 = a[4 * line_stride + k * k_stride]; c4_0 += a4 * b0; c4_1 += a4 * b1;
        const float a5 = a[5 * line_stride + k * k_stride]; c5_0 += a5 * b0; c5_1 += a5 * b1;
        const float a6 = a[6 * line_stride + k * k_stride]; c6_0 += a6 * b0; c6_1 += a6 * b1;
        const float a7 = a[7 * line_stride + k * k_stride]; c7_0 += a7 * b0; c7_1 += a7 * b1;
    }
    store(tile + 0 * K_NR + 0 * SIMD, c0_0);
    store(tile + 0 * K_NR + 1 * SIMD, c0_1);
    store(tile + 1 * K_NR + 0 * SIMD, c1_0);
    store(tile + 1 * K_NR + 1 * SIMD, c1_1);
    store(tile + 2 * K_NR + 0 * SIMD, c2_0);
    store(tile + 2 * K_NR + 1 * SIMD, c2_1);
    store(tile + 3 * K_NR + 0 * SIMD, c3_0);
    store(tile + 3 * K_NR + 1 * SIMD, c3_1);
    store(tile + 4 * K_NR + 0 * SIMD, c4_0);
    store(tile + 4 * K_NR + 1 * SIMD, c4_1);
    store(tile + 5 * K_NR + 0 * SIMD, c5_0);
    store(tile + 5 * K_NR + 1 * SIMD, c5_1);
    store(tile + 6 * K_NR + 0 * SIMD, c6_0);
    store(tile + 6 * K_NR + 1 * SIMD, c6_1);
    store(tile + 7 * K_NR + 0 * SIMD, c7_0);
    store(tile + 7 * K_NR + 1 * SIMD, c7_1);
}

// Adds a computed rectangle to the result; what lies beyond its edge is dropped.
static inline void add_tile( float* to, const float* tile, long long batch, long long i,
                            long long j, bool first, bool last) {
    const long long rows = K_M - i < K_MR ? K_M - i : K_MR, cols = K_N - j < K_NR ? K_N - j : K_NR;
    for (long long r = 0; r < rows; ++r)
        for (long long c = 0; c < cols; ++c) {
            const float sum = first ? tile[r * K_NR + c] : to[r * K_N + c] + tile[r * K_NR + c];
            to[r * K_N + c] = last ? sum : sum;
        }
    (void)batch;
}

extern "C" void multiply(const float* __restrict__ p_a, const float* __restrict__ p_b, float* __restrict__ p_out, float* __restrict__ p_packed_a, float* __restrict__ p_packed_b) {
    #pragma omp parallel
    for (long long batch = 0; batch < K_BATCHES; ++batch)
        for (long long jc = 0; jc < K_N; jc += K_NC)
            for (long long pc = 0; pc < K_K; pc += K_KC) {
                const long long depth = K_K - pc < K_KC ? K_K - pc : K_KC;
                const long long width = K_N - jc < K_NC ? K_N - jc : K_NC;
                const long long panels = (width + K_NR - 1) / K_NR;
                #pragma omp for schedule(static)
                for (long long p = 0; p < panels; ++p) {
                    const long long j = jc + p * K_NR, lines = K_N - j < K_NR ? K_N - j : K_NR;
                    pack_panel<K_NR>(p_b + pc * 1024LL + j * 1LL, 1, 1024, lines, depth, p_packed_b + p * K_NR * K_KC);
                }
                #pragma omp for schedule(static)
                for (long long block = 0; block < (K_M + K_MC - 1) / K_MC * panels; ++block) {
                    const long long ic = block / panels * K_MC, p = block % panels, j = jc + p * K_NR;
                    const float* const panel = p_packed_b + p * K_NR * K_KC;
                    alignas(64) float tile[K_MR * K_NR];
                    for (long long i = ic; i < ic + K_MC && i < K_M; i += K_MR) {
                        if (i + K_MR <= K_M) {
                            micro_kernel(p_a + i * 1024LL + pc * 1LL, 1024, 1, panel, depth, tile);
                        } else {
                            for (long long r = 0; i + r < K_M; ++r)
                                for (int v = 0; v < K_NR / SIMD; ++v) {
                                    const float* const from = p_a + (i + r) * 1024LL + pc * 1LL;
                                    vf sum = {};
                                    for (long long k = 0; k < depth; ++k)
                                        sum += from[k * 1] * load(Vector{}, panel + k * K_NR + v * SIMD);
                                    store(tile + r * K_NR + v * SIMD, sum);
                                }
                        }
                        add_tile( p_out + (batch * K_M + i) * K_N + j, tile, batch, i, j, pc == 0,
                                 pc + K_KC >= K_K);
                    }
                }
            }
}
