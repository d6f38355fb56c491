"""Which headers device code gets: CUDA's own, precompiled where they are slow, and stand-ins for the host's C headers.

NVRTC has no host headers, but kernels written for nvcc include them out of habit; the stand-ins hold the part that
device code can use. Texts only; compiles nothing.
"""

from __future__ import annotations

import re

COMMON = """#ifndef INFINITY
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
#include <cuda/std/cstdint>
"""
"""What nvcc gives every kernel unasked: mathematical constants and integer types of a fixed width."""

SLOW = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <mma.h>
#include <cuda_bf16.h>
#include <cuda/barrier>
#include <cuda/pipeline>
"""
"""One prefix for every kernel that needs a slow header, precompiled. Reading it costs more than the quick headers do;
``python -m benchmarks.header_builds`` shows which are which."""

_SLOW = re.compile(r"^\s*#\s*include\s*[<\"](cooperative_groups|cuda/std/complex|cuda/(?!ptx\b|std/))", re.M)
_CHANGES_HEADERS = re.compile(r"^\s*#\s*define\s+(__CUDA_NO_|CUDA_NO_|_CG_)", re.M)


def wants_precompiled(source: str) -> bool:
    """Whether a kernel includes a slow header, and does not set macros that change what the headers mean."""
    return bool(_SLOW.search(source)) and not _CHANGES_HEADERS.search(source)


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
"""What a kernel needs of ``cuda.h``: the type of a tensor map, as CUDA 13 declares it."""

_LIMITS = "#pragma once\n#include <cuda/std/climits>\n"

_BUILT_IN = "#pragma once\n"


def _libcudacxx(name: str) -> str:
    return f"#pragma once\n#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n"


STAND_INS: dict[str, str] = {
    "cuda.h": _DRIVER,
    "float.h": _FLOAT,
    "cfloat": _FLOAT,
    "limits.h": _LIMITS,
    "climits": _LIMITS,
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
