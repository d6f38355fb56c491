"""C++ text that every launch of the compiler needs: 16-bit types, loads and stores, and the ``fn_*`` functions."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

_CALL, _OPENING = re.compile(r"fn_\w*\("), re.compile(r" (fn_\w*\()")
_COMMON = r"""
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
template <class T, class V> FN T to(V value) { return (T)value; }
template <class T> FN T ld(const T* p, idx i) { return p[i]; }
template <class T> FN void st(T* p, idx i, T value) { p[i] = value; }
FN float from_bits(unsigned bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
FN unsigned to_bits(float value) { unsigned bits; __builtin_memcpy(&bits, &value, 4); return bits; }
FN float ld(const bf16* p, idx i) { return from_bits((unsigned)p[i].bits << 16); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FN unsigned short narrowed(float x) { unsigned short h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
FN float fn_max(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
FN float fn_min(float a, float b) { float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }
#else
FN unsigned short narrowed(float value) {  // to bfloat16: nearest, ties to even
    const unsigned bits = to_bits(value);
    return value != value ? 0x7fc0 : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif
FN void st(bf16* p, idx i, float value) { p[i].bits = narrowed(value); }
FN float eighth(float value, int mantissa, int least) {  // nearest, ties to even; below 2^least evenly spaced
    const int exponent = (int)((to_bits(value) >> 23) & 255) - 127;
    const int step = (exponent < least ? least : exponent) - mantissa;
    const float unit = from_bits((unsigned)(step + 127) << 23);
    const float shifted = value / unit;  // exact: a power of two
    const float magic = 12582912.0f;  // 1.5 * 2^23: sums with it are whole numbers
    volatile float whole = shifted + magic;  // no compiler may drop the sums
    const float rounded = (whole - magic) * unit;
    return from_bits((to_bits(rounded) & 0x7fffffffu) | (to_bits(value) & 0x80000000u));
}
FN float round_float8_e4m3fn(float value) {  // no infinity: the largest number instead, as PyTorch 2.13 gives it
    const float rounded = eighth(value, 3, -6);
    return value != value ? FN_NANF : rounded > 448.0f ? 448.0f : rounded < -448.0f ? -448.0f : rounded;
}
FN float round_float8_e5m2(float value) {
    const float rounded = eighth(value, 2, -14);
    return value != value ? FN_NANF : rounded > 57344.0f ? FN_INFF : rounded < -57344.0f ? -FN_INFF : rounded;
}
FN float round_bf16(float value) { return from_bits((unsigned)narrowed(value) << 16); }
FN idx bounded(long long i, idx size) { return i < 0 ? 0 : i >= size ? size - 1 : (idx)i; }
FN idx wrapped(long long i, idx size) { return bounded(i < 0 ? i + size : i, size); }
template <class T> FN T fn_max(T a, T b) { return (a > b || a != a) ? a : b; }  // NaN passes through, as in PyTorch
template <class T> FN T fn_min(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> FN T fn_neg(T x) { return (T)-x; }
template <class T> FN bool sooner(T a, T b) { return a > b || (a != a && b == b); }
template <class T> FN bool lower(T a, T b) { return a < b || (a != a && b == b); }
template <class T> FN bool below(T a, T b) { return a < b || (b != b && a == a); }
template <class T> FN bool shifts(long long by) { return by >= 0 && by < (long long)(8 * sizeof(T)); }
template <class T, class S> FN T fn_shl(T a, S b) { return shifts<T>(b) ? (T)((unsigned long long)a << b) : (T)0; }
template <class T, class S> FN T fn_shr(T a, S b) { return a >> (shifts<T>(b) ? (int)b : (int)(8 * sizeof(T)) - 1); }
FN long long fn_abs(long long x) { return x < 0 ? -x : x; }
FN int fn_abs(int x) { return x < 0 ? -x : x; }
FN long long fn_floor(long long x) { return x; }
FN long long fn_ceil(long long x) { return x; }
FN long long fn_round(long long x) { return x; }
FN long long fn_trunc(long long x) { return x; }
FN long long fn_fmod(long long a, long long b) { return b ? a % b : 0; }
FN long long fn_copysign(long long a, long long b) { return (a < 0) == (b < 0) ? a : -a; }
FN long long fn_pow(long long a, long long b) {
    long long result = 1;
    for (; b > 0; b >>= 1, a *= a) if (b & 1) result *= a;
    return result;
}
"""

_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "tanh", "erf", "sqrt", "floor", "ceil", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "exp2", "log2", "log10", "trunc", "lgamma"),
)
_PAIRS = ("pow", "atan2", "fmod", "copysign", "hypot")

_WHOLE_POW = (
    "FN long long fn_whole_pow(long long a, long long b) "
    "{ return b >= 0 ? (fn_pow(a, b)) : a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0; }"
)
"""Power of whole numbers: zero for a negative exponent, unless the base is 1 or -1."""
_LOGSUM = (
    "FN double fn_logsum(double a, double b) { return a == b ? a + 0.6931471805599453 : "
    "(a > b ? a : b) + (fn_log1p(fn_exp(-fn_abs(a - b)))); }"
)
"""Logarithm of the sum of two exponentials; of two equal infinities that infinity, NaN where either is.

Calls stand behind brackets: :func:`trimmed` takes a name behind a space for a definition.
"""

_RATIO = r"""
FN float fn_rescale(float x) { return (fn_abs(x)) < 0x1p-64f ? 0x1p64f : (fn_abs(x)) > 0x1p125f ? 0x1p-64f : 1; }
FN float fn_mended(float q, float rest, float r) { return (fn_abs(rest)) < FN_INFF ? fmaf(rest, r, q) : q; }
FN float fn_ratio(float x, float y, float r) { return (fn_mended(x * r, fmaf(-(x * r), y, x), r)); }
"""
"""Factor that makes a number one whose inverse is normal; a quotient rounded right, from the divisor's inverse.

Written as ``_LOGSUM``.
"""

_KEYS = r"""
FN unsigned fn_flipped(unsigned bits) { return bits >> 31 ? ~bits : bits | 1u << 31; }
FN unsigned fn_key(float x) { return x != x ? ~0u : (fn_flipped(to_bits(x + 0.0f))); }
FN unsigned fn_key(int x) { return (unsigned)x ^ 1u << 31; }
"""
"""Whole numbers in the order of values, NaN last, both zeros the same; written as ``_LOGSUM``."""

_WHOLE = r"""
FN long long fn_bits(double x) { long long bits; __builtin_memcpy(&bits, &x, 8); return bits; }
FN double fn_of_bits(long long bits) { double x; __builtin_memcpy(&x, &bits, 8); return x; }
FN long long fn_binary(double x) { return ((fn_bits(x) >> 52) & 2047) - 1022; }
FN long long fn_exponent(double x) { return (fn_binary(x)) < -880 ? -880 : (fn_binary(x)); }
FN double fn_scaled(double x, long long by) { return x * (fn_of_bits((by + 1023) << 52)); }
FN long long fn_mark(double x) { return x != x ? (1LL << 31) + 1 : x >= FN_INF ? 1 : x <= -FN_INF ? 1LL << 31 : 0; }
FN double fn_of_mark(long long m) { return m & 0x7fffffff ? (m >> 31 ? FN_NAN : FN_INF) : m >> 31 ? -FN_INF : 0; }
FN double fn_whole(double x, long long by) { return (fn_round((fn_scaled(x, by)))); }
FN long long fn_long(double x, long long by) { return (long long)(fn_whole(x, by)); }
FN long long fn_fixed(double x, long long e, long long s) { return e > 1024 ? (fn_mark(x)) : (fn_long(x, s - e)); }
FN double fn_behind(double x, long long by) { return (fn_scaled(x, by)) - (fn_whole(x, by)); }
FN long long fn_rest(double x, long long e, long long s) { return e > 1024 ? 0 : (fn_long((fn_behind(x, s - e)), s)); }
FN double fn_unfix(long long q, long long e, long long s) { return e > 1024 ? (fn_of_mark(q)) : (fn_scaled(q, e - s)); }
FN long long fn_ordered(double x) { return (fn_bits(x)) < 0 ? (fn_bits(x)) ^ 0x7fffffffffffffffLL : (fn_bits(x)); }
FN long long fn_ordered_max(double x) { return x != x ? 0x7fffffffffffffffLL : (fn_ordered(x)); }
FN long long fn_ordered_min(double x) { return x != x ? -0x7fffffffffffffffLL - 1 : (fn_ordered(x)); }
FN double fn_unordered(long long v) { return (fn_of_bits(v < 0 ? v ^ 0x7fffffffffffffffLL : v)); }
"""
"""Floats as whole numbers: in fixed point, and in their order; definitions as in ``_LOGSUM``.

``fn_exponent`` gives the least ``e`` with ``|x| < 2^e``, 1025 for what is not finite, of which a sum counts both signs.
NaN is the largest (smallest) of all in an order, whose bits give NaN back.
"""

_WORDS = r"""
FN long long fn_word_float64(double x) { return (fn_bits(x)); }
FN long long fn_word_int64(long long x) { return x; }
FN long long fn_word_float32(float x) { return to_bits(x); }
FN long long fn_word_int32(int x) { return (unsigned)x; }
FN long long fn_word_float16(float x) { f16 half; st(&half, 0, x); return half.bits; }
FN long long fn_word_bfloat16(float x) { return narrowed(x); }
FN long long fn_word_int16(short x) { return (unsigned short)x; }
FN long long fn_word_int8(signed char x) { return (unsigned char)x; }
FN long long fn_word_uint8(unsigned char x) { return x; }
FN long long fn_word_bool(bool x) { return x; }
FN long long fn_sign(float x) { return (to_bits(x) >> 31) << 7; }
FN long long fn_digits(float x) { return x < 0.015625f ? (long long)(x * 512) : (to_bits(x) >> 20) - 960; }
FN long long fn_word_float8_e4m3fn(float x) { return (fn_sign(x)) | (x != x ? 127 : (fn_digits((fn_abs(x))))); }
FN long long fn_word_float8_e5m2(float x) { return (fn_word_float16(x)) >> 8; }
FN double fn_of_word_float64(long long w) { return (fn_of_bits(w)); }
FN long long fn_of_word_int64(long long w) { return w; }
FN float fn_of_word_float32(long long w) { return from_bits((unsigned)w); }
FN int fn_of_word_int32(long long w) { return (int)w; }
FN float fn_of_word_float16(long long w) { f16 half; half.bits = (unsigned short)w; return ld(&half, 0); }
FN float fn_of_word_bfloat16(long long w) { return from_bits((unsigned)w << 16); }
FN short fn_of_word_int16(long long w) { return (short)w; }
FN signed char fn_of_word_int8(long long w) { return (signed char)w; }
FN unsigned char fn_of_word_uint8(long long w) { return (unsigned char)w; }
FN bool fn_of_word_bool(long long w) { return w != 0; }
FN float fn_small(int d) { return d < 8 ? d * 0.001953125f : from_bits((unsigned)(d + 960) << 20); }
FN float fn_eighth(int d) { return d == 127 ? FN_NANF : (fn_small(d)); }
FN float fn_of_word_float8_e4m3fn(long long w) { return w & 128 ? -(fn_eighth(w & 127)) : (fn_eighth(w & 127)); }
FN float fn_of_word_float8_e5m2(long long w) { return (fn_of_word_float16(w << 8)); }
"""
"""Bits of each storage type as a whole number that is not negative, but for 64 of them; definitions as in ``_LOGSUM``.

Of ``e4m3fn``, exponents are biased by 7 and numbers below 2^-6 are multiples of 2^-9: ``960`` is 120 << 3.
"""

_CPU_HEAD = r"""
#define FN static inline
#define FN_INFF __builtin_inff()
#define FN_NANF __builtin_nanf("")
#define FN_INF __builtin_inf()
#define FN_NAN __builtin_nan("")
"""
_CPU_TYPES = r"""
FN bool ld(const bool* p, idx i) { return ((const unsigned char*)p)[i] != 0; }
FN float ld(const f16* p, idx i) { _Float16 half; __builtin_memcpy(&half, p + i, 2); return (float)half; }
FN void st(f16* p, idx i, float value) { const _Float16 half = (_Float16)value; __builtin_memcpy(p + i, &half, 2); }
FN float round_f16(float value) { return (float)(_Float16)value; }
"""
"""Loads and stores of half floats, and loads of truth values: g++ 12 has no vectors of ``bool``."""
_CPU_BRING = r"""
FN void fn_bring_sum(long long* p, long long v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
FN long long fn_now(long long* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
FN bool fn_swap(long long* p, long long& now, long long v) { return __atomic_compare_exchange_n(p, &now, v, 1, 0, 0); }
FN void fn_bring_max(long long* p, long long v) { for (auto now = (fn_now(p)); v > now && !(fn_swap(p, now, v));); }
FN void fn_bring_min(long long* p, long long v) { for (auto now = (fn_now(p)); v < now && !(fn_swap(p, now, v));); }
"""
_CUDA_HEAD = r"""
#define FN __device__ __forceinline__
#define FN_INFF __int_as_float(0x7f800000)
#define FN_NANF __int_as_float(0x7fffffff)
#define FN_INF __longlong_as_double(0x7ff0000000000000LL)
#define FN_NAN __longlong_as_double(0x7ff8000000000000LL)
#define __builtin_memcpy memcpy
"""
_CUDA_TYPES = r"""
FN float widened(unsigned short bits) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)); return x; }
FN unsigned short halved(float x) { unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
FN float ld(const f16* p, idx i) { return widened(p[i].bits); }
FN void st(f16* p, idx i, float value) { p[i].bits = halved(value); }
FN float round_f16(float value) { return widened(halved(value)); }
"""
_CUDA_PACK = r"""
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack { T items[N]; };
template <int N, class T> FN pack<T, N> fetch(const T* p) { return *reinterpret_cast<const pack<T, N>*>(p); }
template <class T, int N> FN void put(T* p, const pack<T, N>& a) { *reinterpret_cast<pack<T, N>*>(p) = a; }
template <class T> FN T across(T value, int by) { return (T)__shfl_xor_sync(0xffffffffu, value, by); }
template <class T> FN T earlier(T value, int by) { return (T)__shfl_up_sync(0xffffffffu, value, by); }
template <class T> FN T at(T value, int lane) { return (T)__shfl_sync(0xffffffffu, value, lane); }
"""
"""Neighbouring elements that are loaded or stored at once, and values of other threads of the warp."""
_CUDA_BRING = r"""
FN void fn_bring_sum(long long* p, long long v) { atomicAdd((unsigned long long*)p, (unsigned long long)v); }
FN void fn_bring_max(long long* p, long long v) { atomicMax(p, v); }
FN void fn_bring_min(long long* p, long long v) { atomicMin(p, v); }
"""


def prelude(index_type: str, *, cuda: bool) -> str:
    """Return the definitions, with this C++ type for indices."""
    builtin = "" if cuda else "__builtin_"
    functions = []
    for name in (*_FUNCTIONS, *_PAIRS):
        pair = name in _PAIRS
        for kind, suffix in (("float", "f"), ("double", "")):
            parameters = f"{kind} x, {kind} y" if pair else f"{kind} x"
            call = f"{builtin}{name}{suffix}({'x, y' if pair else 'x'})"
            functions.append(f"FN {kind} fn_{name}({parameters}) {{ return {call}; }}")
    for kind, suffix in (("float", "f"), ("double", "")):
        functions += [
            f"FN {kind} fn_abs({kind} x) {{ return {builtin}fabs{suffix}(x); }}",
            f"FN {kind} fn_round({kind} x) {{ return {builtin}rint{suffix}(x); }}",
            f"FN {kind} fn_rsqrt({kind} x) {{ return 1 / {builtin}sqrt{suffix}(x); }}",
        ]
    functions += [_LOGSUM, _WHOLE_POW, _WHOLE.strip(), _WORDS.strip(), (_CUDA_BRING if cuda else _CPU_BRING).strip()]
    functions += [_RATIO.strip(), _KEYS.strip(), _CUDA_PACK.strip()] if cuda else []
    head, types = (_CUDA_HEAD, _CUDA_TYPES) if cuda else (_CPU_HEAD, _CPU_TYPES)
    body = "\n".join(functions)
    return f"typedef {index_type} idx;\n{head.strip()}\n{_COMMON.strip()}\n{types.strip()}\n{body}"


def trimmed(text: str, body: str) -> str:
    """Return the prelude without the functions that neither the body nor what is left of it calls."""
    lines = text.split("\n")
    calls = Counter[str]()
    for line in (*lines, *body.split("\n")):
        calls.update(_calls(line))
    while True:
        unused = {line for line in lines if (name := _defined(line)) and calls[name] <= 0}
        if not unused:
            return "\n".join(lines)
        for line in lines:
            if line in unused:
                calls.subtract(_calls(line))
        lines = [line for line in lines if line not in unused]


@lru_cache(maxsize=1024)
def _defined(line: str) -> str | None:
    """Return the function that a line defines in whole, with its bracket; None for any other line."""
    if not line.startswith("FN ") or " fn_" not in line or not line.endswith("}"):
        return None
    return "fn_" + line.split(" fn_")[1].split("(", maxsplit=1)[0] + "("


def _calls(line: str) -> Counter[str]:
    """Return how often a line names each function before a bracket, its own definition left out."""
    calls = Counter(_CALL.findall(line))
    if line.startswith("FN"):
        calls.subtract(set(_OPENING.findall(line)))
    return calls
