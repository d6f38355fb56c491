"""CUDA C++ text: how tensors are read and written, by packs of neighbours and one by one, with the strategy's hints.

A pack holds floats, whatever the type of the tensor in memory: types of 16 bits are widened as they are read, and
rounded as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable

from agents.playbook.operators import Pointwise, Rows
from agents.playbook.templates.source import Options, fill
from cupilot.domain.problem import DType

TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16"}
"""Name in C++ of each type that tensors have in memory."""

WORD = 4
"""Bytes of the words that the width of ``vector_loads`` counts."""

PACK = r"""
// vector_loads: $VEC floats that are neighbours in memory travel together
struct alignas($ALIGNMENT) Pack { float v[$VEC]; };
constexpr int K_VEC = $VEC;
"""

SINGLE = r"""
struct Pack { float v[1]; };
constexpr int K_VEC = 1;
"""

PLAIN_STORE = "template <class T> __device__ __forceinline__ void plain_store(T* p, T v) { *p = v; }\n"

ACCESS = r"""
__device__ __forceinline__ Pack load_pack(const float* p) {
    const $TYPE raw = $LOAD(reinterpret_cast<const $TYPE*>(p));
    return *reinterpret_cast<const Pack*>(&raw);
}
__device__ __forceinline__ void store_pack(float* p, Pack pack) {
    $STORE(reinterpret_cast<$TYPE*>(p), *reinterpret_cast<const $TYPE*>(&pack));
}
"""

PLAIN_ACCESS = r"""
__device__ __forceinline__ Pack load_pack(const float* p) { return *reinterpret_cast<const Pack*>(p); }
__device__ __forceinline__ void store_pack(float* p, Pack pack) { *reinterpret_cast<Pack*>(p) = pack; }
"""

TWO_LOADS = r"""
__device__ __forceinline__ Pack load_pack(const float* p) {
    const float4* q = reinterpret_cast<const float4*>(p);
    const float4 a = $LOAD(q), b = $LOAD(q + 1);
    return Pack{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void store_pack(float* p, Pack pack) {
    float4* q = reinterpret_cast<float4*>(p);
    $STORE(q, make_float4(pack.v[0], pack.v[1], pack.v[2], pack.v[3]));
    $STORE(q + 1, make_float4(pack.v[4], pack.v[5], pack.v[6], pack.v[7]));
}
"""

BFLOAT16 = r"""
struct bf16 {  // in memory; a float wherever it is calculated with, rounded once where it is written
    unsigned short bits;
    __device__ __forceinline__ static float low(unsigned int word) { return __uint_as_float(word << 16); }
    __device__ __forceinline__ static float high(unsigned int word) { return __uint_as_float(word & 0xffff0000u); }
    __device__ __forceinline__ static unsigned int rounded(float v) {  // nearest, ties to even
        const unsigned int bits = __float_as_uint(v);
        return v != v ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
    __device__ __forceinline__ static unsigned int pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
        unsigned int word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
#else
        return rounded(low) | rounded(high) << 16;
#endif
    }
    __device__ __forceinline__ operator float() const { return low(bits); }
    __device__ __forceinline__ void operator=(float v) { bits = (unsigned short)pair(v, 0.0f); }
};
"""

FLOAT16 = r"""
struct f16 {  // in memory; a float wherever it is calculated with, rounded once where it is written
    unsigned short bits;
    __device__ __forceinline__ static float wide(unsigned short bits) {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
        return v;
    }
    __device__ __forceinline__ static unsigned short rounded(float v) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
        return bits;
    }
    __device__ __forceinline__ static float low(unsigned int word) { return wide((unsigned short)word); }
    __device__ __forceinline__ static float high(unsigned int word) { return wide((unsigned short)(word >> 16)); }
    __device__ __forceinline__ static unsigned int pair(float low, float high) {
        return rounded(low) | (unsigned int)rounded(high) << 16;
    }
    __device__ __forceinline__ operator float() const { return wide(bits); }
    __device__ __forceinline__ void operator=(float v) { bits = rounded(v); }
};
"""

HALVES = {DType.BFLOAT16: BFLOAT16, DType.FLOAT16: FLOAT16}

HALF_ACCESS = r"""
template <class T> __device__ __forceinline__ Pack load_pack(const T* p) {
    const $TYPE raw = $LOAD(reinterpret_cast<const $TYPE*>(p));
    const unsigned int words[] = {$WORDS};
    Pack pack;
    #pragma unroll
    for (int w = 0; w < K_VEC / 2; ++w) {
        pack.v[2 * w] = T::low(words[w]);
        pack.v[2 * w + 1] = T::high(words[w]);
    }
    return pack;
}
template <class T> __device__ __forceinline__ void store_pack(T* p, Pack pack) {
    unsigned int words[K_VEC / 2];
    #pragma unroll
    for (int w = 0; w < K_VEC / 2; ++w) words[w] = T::pair(pack.v[2 * w], pack.v[2 * w + 1]);
    $STORE(reinterpret_cast<$TYPE*>(p), $MADE);
}
"""

SINGLE_HALF_ACCESS = r"""
template <class T> __device__ __forceinline__ Pack load_pack(const T* p) {
    return Pack{{T::low($LOAD(&p->bits))}};
}
template <class T> __device__ __forceinline__ void store_pack(T* p, Pack pack) {
    $STORE(&p->bits, (unsigned short)T::pair(pack.v[0], 0.0f));
}
"""

_HALF_WORDS = {
    2: ("unsigned int", "raw", "words[0]"),
    4: ("uint2", "raw.x, raw.y", "make_uint2(words[0], words[1])"),
    8: ("uint4", "raw.x, raw.y, raw.z, raw.w", "make_uint4(words[0], words[1], words[2], words[3])"),
}
"""Type that moves a pack of 16-bit elements, its words, and how it is made of them."""


def lanes(operator: Pointwise | Rows, options: Options) -> int:
    """Return the elements of a pack: those of the strategy's words in the narrowest tensor that is streamed."""
    words = options.number("vector_loads", "width", 0)
    return words * WORD // min(operator.itemsize(name) for name in operator.streamed) if words else 1


def type_of(operator: Pointwise | Rows, name: str) -> str:
    """Return the name in C++ of a tensor of floats' type in memory."""
    return TYPES[operator.halves.get(name, DType.FLOAT32)]


def types_of(operator: Pointwise | Rows) -> dict[str, str]:
    """Return the names in C++ of types other than ``float``, by tensor."""
    return {name: TYPES[dtype] for name, dtype in operator.halves.items()}


def packs(operator: Pointwise | Rows, options: Options, packed: Iterable[str]) -> str:
    """Return the type ``Pack``, and how tensors are read and written: ``packed`` ones by packs, all others singly."""
    width = lanes(operator, options)
    types = {type_of(operator, name) for name in packed}
    text = [fill(PACK if width > 1 else SINGLE, VEC=width, ALIGNMENT=f"4 * {width}" if width <= 4 else 16)]
    load, store = _hints(options)
    access = [_floats(width, load, store)] if "float" in types else []
    access += [_halves(width, load, store)] if types - {"float"} else []
    if any("plain_store(" in item for item in access):
        text.append(PLAIN_STORE.strip("\n"))
    text += [HALVES[kind].strip("\n") for kind in HALVES if kind in operator.halves.values()]
    return "\n".join([*text, *access])


def _hints(options: Options) -> tuple[str, str]:
    """Return what the strategy's loads and stores are called."""
    load = "__ldg" if "read_only_cache" in options else "*"
    if "streaming_access" not in options:
        return load, "plain_store"
    return "__ldcs" if options.text("streaming_access", "scope") == "both" else load, "__stcs"


def _floats(width: int, load: str, store: str) -> str:
    if width > 4:
        return fill(TWO_LOADS, LOAD=load, STORE=store)
    if (load, store) == ("*", "plain_store"):
        return PLAIN_ACCESS.strip("\n")
    return fill(ACCESS, TYPE={1: "float", 2: "float2", 4: "float4"}[width], LOAD=load, STORE=store)


def _halves(width: int, load: str, store: str) -> str:
    if width == 1:
        return fill(SINGLE_HALF_ACCESS, LOAD=load, STORE=store)
    kind, words, made = _HALF_WORDS[width]
    return fill(HALF_ACCESS, TYPE=kind, WORDS=words, MADE=made, LOAD=load, STORE=store)
