"""Headers for device code: CUDA's own, precompiled where they are slow, and stand-ins for the host's C headers.

NVRTC has no host headers, but kernels written for nvcc include them out of habit; the stand-ins hold the part that
device code can use. Texts only; compiles nothing.
"""

from __future__ import annotations

_MATHEMATICS = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_2_PI 0.63661977236758134308
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_2_SQRTPI 1.12837916709551257390
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LN2 0.69314718055994530942
#endif
"""

_LIMITS_OF_TYPES = """#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-SHRT_MAX - 1)
#define SHRT_MAX 0x7fff
#define USHRT_MAX 0xffff
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 0x7fffffff
#define UINT_MAX 0xffffffff
#define LONG_MIN (-LONG_MAX - 1)
#define LONG_MAX LLONG_MAX
#define ULONG_MAX ULLONG_MAX
#define LLONG_MIN (-LLONG_MAX - 1)
#define LLONG_MAX 0x7fffffffffffffffLL
#define ULLONG_MAX 0xffffffffffffffffUL
#define SIZE_MAX UINT64_MAX
#define PTRDIFF_MIN INT64_MIN
#define PTRDIFF_MAX INT64_MAX
"""

_SIZES = {
    "int8": ("signed char", "SCHAR"),
    "int16": ("signed short", "SHRT"),
    "int32": ("signed int", "INT"),
    "int64": ("signed long long", "LLONG"),
    "uint8": ("unsigned char", "UCHAR"),
    "uint16": ("unsigned short", "USHRT"),
    "uint32": ("unsigned int", "UINT"),
    "uint64": ("unsigned long long", "ULLONG"),
}
_LARGEST = {"intptr": "int64", "intmax": "int64", "uintptr": "uint64", "uintmax": "uint64"}


def _integers() -> str:
    """Return what ``<cuda/std/cstdint>`` defines, in its words: reading that, and all that it includes, takes 10 ms."""
    lines = []
    for size, (name, limits) in _SIZES.items():
        least = size.replace("int", "int_least")
        lines += _integer(size, name, limits)
        lines += _integer(least, f"{size}_t", size.upper())
        lines += _integer(size.replace("int", "int_fast"), f"{size}_t", size.upper())
        lines.append(f"#define {size.upper()}_C(X) ((::{least}_t)(X))")
    for integer, size in _LARGEST.items():
        lines += _integer(integer, f"{size}_t", size.upper())
    lines += ["#define INTMAX_C(X) ((::intmax_t)(X))", "#define UINTMAX_C(X) ((::uintmax_t)(X))"]
    return "\n".join(lines) + "\n"


def _integer(integer: str, name: str, limits: str) -> list[str]:
    macro = integer.upper()
    lowest = [] if integer.startswith("u") else [f"#define {macro}_MIN {limits}_MIN"]
    return [f"typedef {name} {integer}_t;", *lowest, f"#define {macro}_MAX {limits}_MAX"]


COMMON = _MATHEMATICS + _LIMITS_OF_TYPES + _integers()
"""Declarations that nvcc gives every kernel unasked: mathematical constants and integer types of a fixed width."""

SLOW = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <mma.h>
#include <cuda_bf16.h>
#include <cuda/barrier>
#include <cuda/pipeline>
"""
"""One prefix for every kernel that needs a slow header, precompiled. Reading it costs more than the quick headers do;
``python -m benchmarks.header_builds`` shows which are which."""

_SLOW = r"^\s*#\s*include\s*[<\"](cooperative_groups|cuda/std/complex|cuda/(?!ptx\b|std/))"
_CHANGES_HEADERS = r"^\s*#\s*define\s+(__CUDA_NO_|CUDA_NO_|_CG_)"


def wants_precompiled(source: str) -> bool:
    """Return whether a kernel includes a slow header, and does not set macros that change what the headers mean."""
    import re  # not for the compiler's process, where this would be a good part of the imports

    return bool(re.search(_SLOW, source, re.M)) and not re.search(_CHANGES_HEADERS, source, re.M)


_FLOAT = """#pragma once
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define DBL_DIG 15
#define DBL_MANT_DIG 53
"""

_DRIVER = """#pragma once
struct alignas(128) CUtensorMap_st {
    unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
"""
"""Part of ``cuda.h`` that kernels need: the type of a tensor map, as CUDA 13 declares it."""

_BUILT_IN = "#pragma once\n"


def _libcudacxx(name: str) -> str:
    return f"#pragma once\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"


STAND_INS: dict[str, str] = {
    "cuda.h": _DRIVER,
    "float.h": _FLOAT,
    "cfloat": _FLOAT,
    "limits.h": _BUILT_IN,
    "climits": _BUILT_IN,
    "stdint.h": _BUILT_IN,
    "cstdint": _BUILT_IN,
    "math.h": _BUILT_IN,
    "cmath": _BUILT_IN,
    "stddef.h": _BUILT_IN,
    "cstddef": _BUILT_IN,
    "stdio.h": _BUILT_IN,
    "cstdio": _BUILT_IN,
    "assert.h": _BUILT_IN,
    "cassert": _BUILT_IN,
    "limits": _libcudacxx("limits"),
    "type_traits": _libcudacxx("type_traits"),
    "utility": _libcudacxx("utility"),
    "array": _libcudacxx("array"),
}
"""By the name that a kernel includes."""
