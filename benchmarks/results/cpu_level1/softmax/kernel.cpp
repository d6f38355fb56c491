// Row operator: 2048 rows of 8192
// Techniques: threads(schedule=static), simd(width=16), polynomial_exp(degree=6), multiple_accumulators(count=4), fused_passes, hoisted_division
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
static inline float fn_exp(float x) { return __builtin_expf(x); }
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
static inline vf fn_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
#define LANE_BY_LANE(name, function) \
    static inline vf name(vf x) { vf y; for (int i = 0; i < SIMD; ++i) y[i] = function(x[i]); return y; }
LANE_BY_LANE(fn_sqrt, __builtin_sqrtf)
#if SIMD == 16 && defined(__AVX512F__)
#define WHOLE_VECTORS 1  // of AVX-512 have instructions for what follows; compilers do not find them by themselves
#endif
// NaN passes both bounds, as it does in vminps and vmaxps where it is the second operand
static inline vf at_most(float bound, vf x) {
#if WHOLE_VECTORS
    return __builtin_ia32_minps512_mask(splat(bound), x, x, -1, 4);
#else
    return (x > bound) ? splat(bound) : x;
#endif
}
static inline vf at_least(float bound, vf x) {
#if WHOLE_VECTORS
    return __builtin_ia32_maxps512_mask(splat(bound), x, x, -1, 4);
#else
    return (x < bound) ? splat(bound) : x;
#endif
}
// polynomial_exp: exp(x) = 2^n exp(r), |r| <= ln(2)/2; at most 1.0 ulp with degree 6, 2.3 with degree 5
struct Reduced { vf r, p, k; vi n; };
static inline Reduced reduce_exponent(vf x) {
    const vf c = at_least(-104.0f, at_most(89.0f, x));
    const vf shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to a whole number
    const vf k = shifted - 12582912.0f;
    const vi n = (vi)shifted - (vi)splat(12582912.0f);
    const vf r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    vf p = splat(0.0013814465f);
    p = p * r + 0.008368781f;
    p = p * r + 0.041668393f;
    p = p * r + 0.1666652f;
    p = p * r + 0.49999994f;
    return {r, r * r * p + r, k, n};
}
static inline vf power_of_two(vi n) { return (vf)((n + 127) << 23); }
static inline vf fn_exp(vf x) {
    const Reduced e = reduce_exponent(x);
#if WHOLE_VECTORS
    return __builtin_ia32_scalefps512_mask(e.p + 1.0f, e.k, e.k, -1, 4);
#else
    const vi half = e.n >> 1;  // in two steps, so that results below 2^-126 come out right
    return (e.p + 1.0f) * power_of_two(half) * power_of_two(e.n - half);
#endif
}

struct Part { double value; long long index; };  // what one part of a row has found
struct Peak {
    vf lanes[K_CHAINS];
    float top = -3.402823466e38f;  // finite, so that exp(x - top) is never exp(inf - inf) for an empty part
    Peak() { for (int chain = 0; chain < K_CHAINS; ++chain) lanes[chain] = splat(top); }
    void add(vf v, long long, int chain) { lanes[chain] = v > lanes[chain] ? v : lanes[chain]; }
    void add(float v, long long, int) { top = v > top ? v : top; }
    void settle() {
        vf best = lanes[0];
        for (int chain = 1; chain < K_CHAINS; ++chain) best = lanes[chain] > best ? lanes[chain] : best;
        float words[SIMD];
        store(words, best);
        for (int half = SIMD / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane)
                words[lane] = words[lane + half] > words[lane] ? words[lane + half] : words[lane];
        add(words[0], 0, 0);
    }
    Part part() { settle(); return {top, 0}; }
    void merge(Part other) { add((float)other.value, 0, 0); }
    float value() { settle(); return top; }
};
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

static inline void one_row(const float* __restrict__ p_x, float* __restrict__ p_out) {
    Peak m0_sum;
    each(0, K_LENGTH, [&](auto lanes, long long i, int chain) {
        const auto v_x = load(lanes, p_x + i);
        m0_sum.add(v_x, i, chain);
    });
    const auto m0 = m0_sum.value();
    Sum m1_sum;
    each(0, K_LENGTH, [&](auto lanes, long long i, int chain) {
        const auto v_x = load(lanes, p_x + i);
        const auto kept = fn_exp((v_x - m0));
        store(p_out + i, kept);  // fused_passes
        m1_sum.add(kept, i, chain);
    });
    const auto m1 = m1_sum.value();
    const auto q0 = (1.0f / m1);
    each(0, K_LENGTH, [&](auto lanes, long long i, int chain) {
        const auto v_x = load(lanes, p_out + i);
        store(p_out + i, (v_x * q0));
    });
}

extern "C" void reduce_rows(const float* __restrict__ p_x, float* __restrict__ p_out) {
    #pragma omp parallel for schedule(static)
    for (long long row = 0; row < K_ROWS; ++row)
        one_row(p_x + row * K_LENGTH, p_out + row * K_LENGTH);
}
