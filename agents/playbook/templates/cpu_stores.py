"""C++ text for the ``cpu`` target: stores past the caches, and loads of operands that repeat."""

from __future__ import annotations

STREAMING_STORES = """
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
"""

BROADCAST_SCALAR = """
template <long long DIV, long long MOD>
static inline float broadcast(Scalar, const float* p, long long i) { return p[i / DIV % MOD]; }
"""

BROADCAST_VECTOR = (
    BROADCAST_SCALAR
    + """
template <long long DIV, long long MOD>
static inline vf broadcast(Vector, const float* p, long long i) {
    if (DIV == 1 && MOD % SIMD == 0) return load(Vector{}, p + i % MOD);
    if (DIV % SIMD == 0) return splat(p[i / DIV % MOD]);
    vf value;
    for (int lane = 0; lane < SIMD; ++lane) value[lane] = p[(i + lane) / DIV % MOD];
    return value;
}
"""
)
