// Row operator: 2048 rows of 8192
// Techniques: threads(schedule=static), simd(width=4), multiple_accumulators(count=4), one_pass_moments(method=welford), nontemporal_stores
#include "problem.h"

constexpr long long K_ROWS = 2048LL;
constexpr long long K_LENGTH = 8192LL;

constexpr long long K_CHAINS = 4LL;
constexpr long long K_UNROLL = 4LL;

#define FN_INF __builtin_inff()
#define FN_NAN __builtin_nanf("")
struct Scalar { static constexpr int width = 1; };
static inline float load(Scalar, const float* p) { return *p; }
static inline float splat(Scalar, float value) { return value; }
static inline void store(float* p, float value) { *p = value; }
static inline float fn_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
// simd: 4 floats at a time, as a vector type of the compiler
#define SIMD 4
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
static inline vf fn_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
#define LANE_BY_LANE(name, function) \
    static inline vf name(vf x) { vf y; for (int i = 0; i < SIMD; ++i) y[i] = function(x[i]); return y; }
LANE_BY_LANE(fn_sqrt, __builtin_sqrtf)
static inline vf fn_rsqrt(vf x) { return 1.0f / fn_sqrt(x); }

// nontemporal_stores: aligned vectors go to memory without first reading the line they overwrite
static inline void stream(float* p, vf value) {
#if SIMD == 16 && defined(__AVX512F__)
    __builtin_ia32_movntps512(p, value);
#elif SIMD == 8 && defined(__AVX__)
    __builtin_ia32_movntps256(p, value);
#elif SIMD == 4 && defined(__SSE__)
    __builtin_ia32_movntps(p, value);
#else
    store(p, value);
#endif
}
static inline void stream(float* p, float value) { *p = value; }
static inline void drain_stores() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

struct Part { double value; long long index; };  // what one part of a row has found
struct Sum {
    vf lanes[K_CHAINS] = {};
    float rest = 0;
    double total = 0;
    void add(vf v, long long, int chain) { lanes[chain] += v; }
    void add(float v, long long, int) { rest += v; }
    void settle() {
        vf sum = lanes[0];
        for (int chain = 1; chain < K_CHAINS; ++chain) sum += lanes[chain];
        for (int chain = 0; chain < K_CHAINS; ++chain) lanes[chain] = vf{};
        float words[SIMD];
        store(words, sum);
        for (int half = SIMD / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) words[lane] += words[lane + half];
        total += (double)words[0] + rest;
        rest = 0;
    }
    Part part() { settle(); return {total, 0}; }
    void merge(Part other) { total += other.value; }
    float value() { settle(); return (float)total; }
};

// Calls f(lanes, index, chain) for every vector, and every left-over element, of [begin, end).
template <class F>
static inline __attribute__((always_inline)) void each(long long begin, long long end, F&& f) {
    long long i = begin;
    for (; i + K_UNROLL * SIMD <= end; i += K_UNROLL * SIMD) {
        #pragma GCC unroll 16
        for (int u = 0; u < K_UNROLL; ++u) f(Vector{}, i + u * SIMD, u % K_CHAINS);
    }
    for (; i + SIMD <= end; i += SIMD) f(Vector{}, i, 0);
    for (; i < end; ++i) f(Scalar{}, i, 0);
}

static inline void one_row(const float* __restrict__ p_x, const float* __restrict__ p_ln_weight, const float* __restrict__ p_ln_bias, float* __restrict__ p_out) {
    // one_pass_moments: pieces merged as in Chan, Golub and LeVeque (1979)
    double seen = 0, mean = 0, squares = 0;
    for (long long begin = 0; begin < K_LENGTH; begin += 1024) {
        const long long end = begin + 1024 < K_LENGTH ? begin + 1024 : K_LENGTH;
        Sum piece_total;
        each(begin, end, [&](auto lanes, long long i, int chain) {
            const auto v_x = load(lanes, p_x + i);
            piece_total.add(v_x, i, chain);
        });
        const double count = end - begin, piece_mean = (double)piece_total.value() / count;
        const float shift = (float)piece_mean;
        Sum piece_squares;
        each(begin, end, [&](auto lanes, long long i, int chain) {
            const auto v_x = load(lanes, p_x + i);
            const auto deviation = v_x - shift;
            piece_squares.add(deviation * deviation, i, chain);
        });
        const double gap = piece_mean - mean, all = seen + count;
        mean += gap * count / all;
        squares += (double)piece_squares.value() + gap * gap * seen * count / all;
        seen = all;
    }
    const float m0 = (float)(mean * K_LENGTH), m1 = (float)squares;
    const auto q0 = (m0 / 8192.0f);
    const auto q1 = fn_rsqrt(((m1 / 8192.0f) + 1e-05f));
    each(0, K_LENGTH, [&](auto lanes, long long i, int chain) {
        const auto v_ln_bias = load(lanes, p_ln_bias + i);
        const auto v_ln_weight = load(lanes, p_ln_weight + i);
        const auto v_x = load(lanes, p_x + i);
        stream(p_out + i, ((((v_x - q0) * q1) * v_ln_weight) + v_ln_bias));
    });
}

extern "C" void reduce_rows(const float* __restrict__ p_x, const float* __restrict__ p_ln_weight, const float* __restrict__ p_ln_bias, float* __restrict__ p_out) {
    #pragma omp parallel for schedule(static)
    for (long long row = 0; row < K_ROWS; ++row)
        one_row(p_x + row * K_LENGTH, p_ln_weight, p_ln_bias, p_out + row * K_LENGTH);
    drain_stores();
}
