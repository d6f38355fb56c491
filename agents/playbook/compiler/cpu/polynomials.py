"""Exponential and similar functions as polynomials without branches, of which compilers make vectors; ``cpu`` only.

The fits, and their errors, are those of :mod:`agents.playbook.templates.cpu_math`.
"""

from __future__ import annotations

from string import Template

EXP_COEFFICIENTS = {
    5: (0.49999228, 0.16667116, 0.041890554, 0.0083124796),
    6: (0.49999994, 0.1666652, 0.041668393, 0.008368781, 0.0013814465),
}
"""Of ``exp`` by its polynomial's degree, from the square on."""
_REDUCED = r"""
struct Reduced { float p; int n; };
FN Reduced reduced(float x) {  // exp(x) = 2^n (p + 1)
    const float low = x > 89.0f ? 89.0f : x;
    const float c = low < -104.0f ? -104.0f : low;
    const float shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to a whole number
    const float k = shifted - 12582912.0f;
    const float r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = $LAST;
    $STEPS
    return {r * r * p + r, (int)(to_bits(shifted) - 0x4b400000u)};
}
FN float power_of_two(int n) { return from_bits((unsigned)(n + 127) << 23); }
FN float with_sign(float size, float x) { return from_bits(to_bits(size) | (to_bits(x) & 0x80000000u)); }
"""
_FUNCTIONS = {
    "exp": r"""
FN float fn_exp(float x) {
    const Reduced e = reduced(x);
    const int half = e.n >> 1;  // in two steps, so that results below 2^-126 come out right
    return (e.p + 1.0f) * power_of_two(half) * power_of_two(e.n - half);
}
""",
    "expm1": r"""
FN float fn_expm1(float x) {
    const Reduced e = reduced(x < -30.0f ? -30.0f : x);
    const float scale = power_of_two(e.n > 127 ? 127 : e.n);
    const float small = e.p * scale + (scale - 1.0f), large = fn_exp(x);
    return x > 87.0f ? large : small;
}
""",
    "tanh": r"""
FN float fn_tanh(float x) {
    const float s = x * x, size = fn_abs(x);
    float p = -0.0057049906f;
    p = p * s + 0.020639092f;
    p = p * s - 0.053739715f;
    p = p * s + 0.13331442f;
    p = p * s - 0.3333328f;
    const float near = p * s * x + x, far = 1.0f - 2.0f / (fn_exp(size + size) + 1.0f);
    const float signed_far = with_sign(far, x);
    return size < 0.625f ? near : signed_far;
}
""",
    "erf": r"""
FN float fn_erf(float x) {
    const float s = x * x, size = fn_abs(x), t = size > 4.0f ? 4.0f : size;  // erf(4) is 1 in float32
    float p = 8.3576488e-5f;
    p = p * s - 0.00081415323f;
    p = p * s + 0.0052011549f;
    p = p * s - 0.026859591f;
    p = p * s + 0.11283704f;
    p = p * s - 0.37612635f;
    const float near = p * s * x + (x * 1.28379167e-1f + x);
    float q = -2.1095055e-5f;
    q = q * t + 0.00043446265f;
    q = q * t - 0.0041710632f;
    q = q * t + 0.025119428f;
    q = q * t - 0.1082801f;
    q = q * t - 0.63334692f;
    q = q * t - 1.1295149f;
    q = q * t + 0.00017468449f;
    const float far = 1.0f - fn_exp(q), signed_far = with_sign(far, x);
    return size < 0.92f ? near : signed_far;
}
""",
    "log": r"""
FN float fn_log(float x) {
    const bool tiny = x < 1.17549435e-38f;
    const float scaled = tiny ? x * 8388608.0f : x;
    const int bits = (int)(to_bits(scaled) - 0x3f3504f3u);
    const int n = (bits >> 23) - (tiny ? 23 : 0);
    const float f = from_bits((unsigned)(bits & 0x007fffff) + 0x3f3504f3u) - 1.0f;
    float p = 0.067466073f;
    p = p * f - 0.11675636f;
    p = p * f + 0.11888169f;
    p = p * f - 0.12405592f;
    p = p * f + 0.14219552f;
    p = p * f - 0.16667996f;
    p = p * f + 0.20002119f;
    p = p * f - 0.25000009f;
    p = p * f + 0.33333313f;
    const float k = (float)n, s = f * f;
    float y = p * f * s + k * 1.42860677e-6f;
    y = y - 0.5f * s;
    y = (y + f) + k * 0.693145752f;
    y = x == FN_INFF ? x : y;
    y = x == 0.0f ? -FN_INFF : y;
    return x < 0.0f || x != x ? FN_NANF : y;
}
""",
    "log1p": r"""
FN float fn_log1p(float x) {
    const float u = 1.0f + x, log = fn_log(u), y = log + (x - (u - 1.0f)) / u;
    return u == FN_INFF || u == 0.0f ? log : y;
}
""",
}
_NEEDS = {"exp": (), "expm1": ("exp",), "tanh": ("exp",), "erf": ("exp",), "log": (), "log1p": ("log",)}
NAMES = tuple(_FUNCTIONS)
"""Functions that there are polynomials for."""


def with_polynomials(prelude: str, body: str, degree: int) -> str:
    """Return definitions with those functions that a body calls as polynomials, in the place of the library's."""
    called = [name for name in NAMES if f"fn_{name}(" in body]
    wanted = {need for name in called for need in (name, *_NEEDS[name])}
    if not wanted:
        return prelude
    lines = [line for line in prelude.split("\n") if not any(f" fn_{name}(float x)" in line for name in wanted)]
    last, coefficients = EXP_COEFFICIENTS[degree][-1], EXP_COEFFICIENTS[degree][:-1]
    steps = " ".join(f"p = p * r + {value!r}f;" for value in reversed(coefficients))
    reduced = Template(_REDUCED).substitute(LAST=f"{last!r}f", STEPS=steps)
    return "\n".join([*lines, reduced.strip(), *(_FUNCTIONS[name].strip() for name in NAMES if name in wanted)])
