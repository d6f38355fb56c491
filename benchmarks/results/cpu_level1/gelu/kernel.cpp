// Pointwise map of 16777216 elements, 1 operand(s)
// Techniques: threads(schedule=static), simd(width=16), polynomial_exp(degree=6), loop_unrolling(factor=2)
#include "problem.h"

constexpr long long K_SIZE = 16777216LL;
constexpr long long K_CHUNK = 8192LL;

#define FN_INF __builtin_inff()
#define FN_NAN __builtin_nanf("")
struct Scalar { static constexpr int width = 1; };
static inline float load(Scalar, const float* p) { return *p; }
static inline float splat(Scalar, float value) { return value; }
static inline void store(float* p, float value) { *p = value; }
static inline float fn_erf(float x) { return __builtin_erff(x); }
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
// polynomial_exp: exp(x) = 2^n exp(r), |r| <= ln(2)/2; at most 1.0 ulp with degree 6, 1.6 with degree 5
struct Reduced { vf r, p; vi n; };
static inline Reduced reduce_exponent(vf x) {
    vf c = (x > 89.0f) ? splat(89.0f) : x;  // NaN passes both bounds
    c = (c < -104.0f) ? splat(-104.0f) : c;
    const vf shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to a whole number
    const vf k = shifted - 12582912.0f;
    const vi n = (vi)shifted - (vi)splat(12582912.0f);
    const vf r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    vf p = splat(0.0013814465f);
    p = p * r + 0.008368781f;
    p = p * r + 0.041668393f;
    p = p * r + 0.1666652f;
    p = p * r + 0.49999994f;
    return {r, r * r * p + r, n};
}
static inline vf power_of_two(vi n) { return (vf)((n + 127) << 23); }
static inline vf fn_exp(vf x) {
    const Reduced e = reduce_exponent(x);
    const vi half = e.n >> 1;  // in two steps, so that results below 2^-126 come out right
    return (e.p + 1.0f) * power_of_two(half) * power_of_two(e.n - half);
}
// erf: x (2/sqrt(pi) + p(x^2)) up to 0.92, 1 - exp(q(|x|)) beyond; at most 2 ulp
static inline vf fn_erf(vf x) {
    const vf s = x * x;
    vf p = splat(8.3576488e-5f);
    p = p * s - 0.00081415323f;
    p = p * s + 0.0052011549f;
    p = p * s - 0.026859591f;
    p = p * s + 0.11283704f;
    p = p * s - 0.37612635f;
    const vf near = p * s * x + (x * 1.28379167e-1f + x);
    const vf size = fn_abs(x);
    const vf t = (size > 4.0f) ? splat(4.0f) : size;  // erf(4) is 1 in float32; NaN passes
    vf q = splat(-2.1095055e-5f);
    q = q * t + 0.00043446265f;
    q = q * t - 0.0041710632f;
    q = q * t + 0.025119428f;
    q = q * t - 0.1082801f;
    q = q * t - 0.63334692f;
    q = q * t - 1.1295149f;
    q = q * t + 0.00017468449f;
    const vf far = 1.0f - fn_exp(q);
    const vf signed_far = (vf)((vi)far | ((vi)x & (int)0x80000000));
    return (size < 0.92f) ? near : signed_far;
}

template <class Lanes, class T0>
static inline __attribute__((always_inline)) auto compute(Lanes, T0 v_x) {
    return ((0.5f * v_x) * (1.0f + fn_erf((v_x * 0.707106781f))));
}

extern "C" void map_elements(const float* __restrict__ p_x, float* __restrict__ p_out) {
    #pragma omp parallel for schedule(static)
    for (long long begin = 0; begin < K_SIZE; begin += K_CHUNK) {
        const long long end = begin + K_CHUNK < K_SIZE ? begin + K_CHUNK : K_SIZE;
        long long i = begin;
        for (; i + 2 * SIMD <= end; i += 2 * SIMD) {
            #pragma GCC unroll 2
            for (long long j = i; j < i + 2 * SIMD; j += SIMD) {
                store(p_out + j, compute(Vector{}, load(Vector{}, p_x + j)));
            }
        }
        for (; i + SIMD <= end; i += SIMD) store(p_out + i, compute(Vector{}, load(Vector{}, p_x + i)));
        for (; i < end; ++i) store(p_out + i, compute(Scalar{}, load(Scalar{}, p_x + i)));
    }
}
