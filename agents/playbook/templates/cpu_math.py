"""C++ text for the ``cpu`` target: value types, loads and stores, and the ``fn_*`` functions that expressions call.

Polynomials are minimax fits made for this project (iteratively reweighted least squares on Chebyshev nodes against
float64); their errors in units of the last place, measured over the whole range, stand beside them.
"""

from __future__ import annotations

import re

from agents.playbook.compiler.cpu.polynomials import EXP_COEFFICIENTS
from agents.playbook.expressions import Expr
from agents.playbook.ordering import walk
from agents.playbook.templates.source import Options, fill

SCALAR_FUNCTIONS = r"""
#define FN_INF __builtin_inff()
#define FN_NAN __builtin_nanf("")
struct Scalar { static constexpr int width = 1; };
static inline float load(Scalar, const float* p) { return *p; }
static inline float splat(Scalar, float value) { return value; }
static inline void store(float* p, float value) { *p = value; }
static inline float fn_exp(float x) { return __builtin_expf(x); }
static inline float fn_expm1(float x) { return __builtin_expm1f(x); }
static inline float fn_log(float x) { return __builtin_logf(x); }
static inline float fn_log1p(float x) { return __builtin_log1pf(x); }
static inline float fn_tanh(float x) { return __builtin_tanhf(x); }
static inline float fn_erf(float x) { return __builtin_erff(x); }
static inline float fn_sqrt(float x) { return __builtin_sqrtf(x); }
static inline float fn_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float fn_abs(float x) { return __builtin_fabsf(x); }
static inline float fn_floor(float x) { return __builtin_floorf(x); }
static inline float fn_ceil(float x) { return __builtin_ceilf(x); }
static inline float fn_round(float x) { return __builtin_rintf(x); }
static inline float fn_sin(float x) { return __builtin_sinf(x); }
static inline float fn_cos(float x) { return __builtin_cosf(x); }
static inline float fn_pow(float x, float y) { return __builtin_powf(x, y); }
static inline float fn_max(float a, float b) { return (a > b || a != a) ? a : b; }  // NaN passes through, as in PyTorch
static inline float fn_min(float a, float b) { return (a < b || a != a) ? a : b; }
static inline float fn_select(bool mask, float yes, float no) { return mask ? yes : no; }
static inline bool fn_not(bool mask) { return !mask; }
"""

VECTOR_TYPES = r"""
// simd: $WIDTH floats at a time, as a vector type of the compiler
#define SIMD $WIDTH
typedef float vf __attribute__((vector_size(4 * SIMD)));
typedef float vf_unaligned __attribute__((vector_size(4 * SIMD), aligned(4), may_alias));
typedef int vi __attribute__((vector_size(4 * SIMD)));
struct Vector { static constexpr int width = SIMD; };
static inline vf load(Vector, const float* p) { return *(const vf_unaligned*)p; }
static inline vf splat(Vector, float value) { return vf{} + value; }
static inline vf splat(Vector, vf value) { return value; }
static inline vf splat(float value) { return vf{} + value; }
static inline vf as_vector(vf value) { return value; }
static inline vf as_vector(float value) { return splat(value); }
static inline void store(float* p, vf value) { *(vf_unaligned*)p = value; }
static inline vf fn_select(vi mask, vf yes, vf no) { return mask ? yes : no; }
static inline vf fn_select(vi mask, float yes, vf no) { return mask ? splat(yes) : no; }
static inline vf fn_select(vi mask, vf yes, float no) { return mask ? yes : splat(no); }
static inline vf fn_select(vi mask, float yes, float no) { return mask ? splat(yes) : splat(no); }
static inline vf fn_select(bool mask, vf yes, vf no) { return mask ? yes : no; }
static inline vf fn_select(bool mask, float yes, vf no) { return mask ? splat(yes) : no; }
static inline vf fn_select(bool mask, vf yes, float no) { return mask ? yes : splat(no); }
static inline vi fn_not(vi mask) { return ~mask; }
static inline vf fn_max(vf a, vf b) { return ((a > b) | (a != a)) ? a : b; }
static inline vf fn_max(vf a, float b) { return (a < b) ? splat(b) : a; }
static inline vf fn_max(float a, vf b) { return (b < a) ? splat(a) : b; }
static inline vf fn_min(vf a, vf b) { return ((a < b) | (a != a)) ? a : b; }
static inline vf fn_min(vf a, float b) { return (a > b) ? splat(b) : a; }
static inline vf fn_min(float a, vf b) { return (b > a) ? splat(a) : b; }
static inline vf fn_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
#define LANE_BY_LANE(name, function) \
    static inline vf name(vf x) { vf y; for (int i = 0; i < SIMD; ++i) y[i] = function(x[i]); return y; }
LANE_BY_LANE(fn_sqrt, __builtin_sqrtf)
static inline vf fn_rsqrt(vf x) { return 1.0f / fn_sqrt(x); }
"""

LANE_FUNCTIONS = {
    "floor": "__builtin_floorf",
    "ceil": "__builtin_ceilf",
    "round": "__builtin_rintf",
    "sin": "__builtin_sinf",
    "cos": "__builtin_cosf",
    "exp": "__builtin_expf",
    "expm1": "__builtin_expm1f",
    "log": "__builtin_logf",
    "log1p": "__builtin_log1pf",
    "tanh": "__builtin_tanhf",
    "erf": "__builtin_erff",
}

LANE_POWER = r"""
static inline vf fn_pow(vf x, float y) {
    vf z;
    for (int i = 0; i < SIMD; ++i) z[i] = __builtin_powf(x[i], y);
    return z;
}
"""

POLYNOMIALS = {
    "bounds": r"""
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
""",
    "exp": r"""
// polynomial_exp: exp(x) = 2^n exp(r), |r| <= ln(2)/2; at most 1.0 ulp with degree 6, 2.3 with degree 5
struct Reduced { vf r, p, k; vi n; };
static inline Reduced reduce_exponent(vf x) {
    const vf c = at_least(-104.0f, at_most(89.0f, x));
    const vf shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to a whole number
    const vf k = shifted - 12582912.0f;
    const vi n = (vi)shifted - (vi)splat(12582912.0f);
    const vf r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    vf p = splat($LAST);
    $STEPS
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
""",
    "expm1": r"""
// expm1(x) = 2^n expm1(r) + (2^n - 1): at most 2 ulp, 12 near 0 with degree 5
static inline vf fn_expm1(vf x) {
    const Reduced e = reduce_exponent(at_least(-30.0f, x));
    const vf scale = power_of_two((e.n > 127) ? vi{} + 127 : e.n);
    const vf small = e.p * scale + (scale - 1.0f);
    return (x > 87.0f) ? fn_exp(x) : small;
}
""",
    "tanh": r"""
// tanh: an odd polynomial up to 0.625, 1 - 2 / (exp(2 |x|) + 1) beyond; at most 2 ulp
static inline vf fn_tanh(vf x) {
    const vf s = x * x;
    vf p = splat(-0.0057049906f);
    p = p * s + 0.020639092f;
    p = p * s - 0.053739715f;
    p = p * s + 0.13331442f;
    p = p * s - 0.3333328f;
    const vf size = fn_abs(x);
    const vf far = 1.0f - 2.0f / (fn_exp(size + size) + 1.0f);
    const vf signed_far = (vf)((vi)far | ((vi)x & (int)0x80000000));
    return (size < 0.625f) ? p * s * x + x : signed_far;
}
""",
    "erf": r"""
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
    const vf t = at_most(4.0f, size);  // erf(4) is 1 in float32
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
""",
    "log": r"""
// log(x) = n ln(2) + log(1 + f), f from sqrt(1/2) - 1 to sqrt(2) - 1; at most 1.5 ulp
static inline vf fn_log(vf x) {
    const vi tiny = x < 1.17549435e-38f;
    const vf scaled = tiny ? x * 8388608.0f : x;
    const vi bits = (vi)scaled - 0x3f3504f3;
    const vi n = (bits >> 23) - (tiny & 23);
    const vf f = (vf)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vf p = splat(0.067466073f);
    p = p * f - 0.11675636f;
    p = p * f + 0.11888169f;
    p = p * f - 0.12405592f;
    p = p * f + 0.14219552f;
    p = p * f - 0.16667996f;
    p = p * f + 0.20002119f;
    p = p * f - 0.25000009f;
    p = p * f + 0.33333313f;
    const vf k = __builtin_convertvector(n, vf);
    const vf s = f * f;
    vf y = p * f * s + k * 1.42860677e-6f;
    y = y - 0.5f * s;
    y = (y + f) + k * 0.693145752f;
    y = (x == FN_INF) ? x : y;
    y = (x == 0.0f) ? splat(-FN_INF) : y;
    return ((x < 0.0f) | (x != x)) ? splat(FN_NAN) : y;
}
""",
    "log1p": r"""
// log1p(x) = log(u) + (x - (u - 1)) / u with u = 1 + x rounded
static inline vf fn_log1p(vf x) {
    const vf u = 1.0f + x;
    const vf y = fn_log(u) + (x - (u - 1.0f)) / u;
    return ((u == FN_INF) | (u == 0.0f)) ? fn_log(u) : y;
}
""",
}

_NEEDS = {
    "exp": ("bounds", "exp"),
    "expm1": ("bounds", "exp", "expm1"),
    "tanh": ("bounds", "exp", "tanh"),
    "erf": ("bounds", "exp", "erf"),
    "log": ("log",),
    "log1p": ("log", "log1p"),
}


def prelude(roots: list[Expr], options: Options, always: tuple[str, ...] = ()) -> str:
    """Return the value types and functions that expressions over these roots call under the given techniques."""
    used = {node.op for node in walk(roots)} | set(always)
    polynomial = "polynomial_exp" in options
    wanted = {need for name in used if polynomial for need in _NEEDS.get(name, ())}
    called = used | {"abs", "sqrt"} if "simd" in options else used
    text = [only_used(SCALAR_FUNCTIONS, used)]
    if "simd" not in options:
        return text[0]
    text.append(only_used(vector_types(options), called))
    lanes = [name for name in LANE_FUNCTIONS if name in used and name not in wanted]
    text += [f"LANE_BY_LANE(fn_{name}, {LANE_FUNCTIONS[name]})" for name in lanes]
    if "pow" in used:
        text.append(LANE_POWER)
    coefficients = EXP_COEFFICIENTS[options.number("polynomial_exp", "degree", 6)]
    steps = [f"p = p * r + {value!r}f;" for value in reversed(coefficients[:-1])]
    for name, body in POLYNOMIALS.items():
        if name in wanted:
            text.append(fill(body, LAST=f"{coefficients[-1]!r}f", STEPS=steps) if name == "exp" else body)
    return "\n".join(part.strip("\n") for part in text)


def vector_types(options: Options) -> str:
    """Return the vector types at the width that the strategy asks for."""
    return fill(VECTOR_TYPES, WIDTH=options.number("simd", "width", 16))


def only_used(text: str, names: set[str]) -> str:
    """Return the prelude without the functions that nobody calls."""
    kept = []
    for line in text.strip("\n").split("\n"):
        function = re.search(r" fn_(\w+)\(", line) if line.startswith("static inline") else None
        if function is None or function.group(1) in names:
            kept.append(line)
    return "\n".join(kept)
