"""CUDA C++ text: the ``fn_*`` functions of expressions, and launch bounds."""

from __future__ import annotations

import re

from agents.playbook.expressions import Expr, call, replace
from agents.playbook.ordering import walk
from agents.playbook.templates.source import Options

BASE = r"""
#define FN_INF __int_as_float(0x7f800000)
#define FN_NAN __int_as_float(0x7fffffff)
"""

FUNCTIONS = r"""
__device__ __forceinline__ float fn_exp(float x) { return expf(x); }
__device__ __forceinline__ float fn_expm1(float x) { return expm1f(x); }
__device__ __forceinline__ float fn_log(float x) { return logf(x); }
__device__ __forceinline__ float fn_log1p(float x) { return log1pf(x); }
__device__ __forceinline__ float fn_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float fn_erf(float x) { return erff(x); }
__device__ __forceinline__ float fn_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ float fn_rsqrt(float x) { return 1.0f / sqrtf(x); }
__device__ __forceinline__ float fn_abs(float x) { return fabsf(x); }
__device__ __forceinline__ float fn_floor(float x) { return floorf(x); }
__device__ __forceinline__ float fn_ceil(float x) { return ceilf(x); }
__device__ __forceinline__ float fn_round(float x) { return rintf(x); }
__device__ __forceinline__ float fn_sin(float x) { return sinf(x); }
__device__ __forceinline__ float fn_cos(float x) { return cosf(x); }
__device__ __forceinline__ float fn_pow(float x, float y) { return powf(x, y); }
__device__ __forceinline__ float fn_max(float a, float b) { return (a > b || a != a) ? a : b; }  // NaN passes through
__device__ __forceinline__ float fn_min(float a, float b) { return (a < b || a != a) ? a : b; }
__device__ __forceinline__ float fn_select(bool mask, float yes, float no) { return mask ? yes : no; }
__device__ __forceinline__ bool fn_not(bool mask) { return !mask; }
"""

FAST = {
    "exp": "__device__ __forceinline__ float fn_exp(float x) { return __expf(x); }  // fast_exp",
    "expm1": "__device__ __forceinline__ float fn_expm1(float x) { return __expf(x) - 1.0f; }  // fast_exp",
    "tanh": (
        "__device__ __forceinline__ float fn_tanh(float x) {\n"
        "    return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);  // fast_exp\n}"
    ),
    "quotient": (
        "__device__ __forceinline__ float fn_quotient(float a, float b) {\n    return __fdividef(a, b);  // fast_exp\n}"
    ),
}
"""Approximate units: absolute errors of about 1e-7 where the values are of order one."""


def functions(roots: list[Expr], options: Options, always: tuple[str, ...] = ()) -> str:
    """Return the functions that expressions over these roots call, approximate ones under ``fast_exp``."""
    used = {node.op for node in walk(roots)} | set(always)
    fast = {name: text for name, text in FAST.items() if "fast_exp" in options and name in used}
    kept = []
    for line in FUNCTIONS.strip("\n").split("\n"):
        function = re.search(r" fn_(\w+)\(", line)
        name = function.group(1) if function else ""
        if name in used and name not in fast:
            kept.append(line)
    return "\n".join([BASE.strip("\n"), *kept, *fast.values()])


def fast_division(root: Expr, options: Options) -> Expr:
    """Return the expression with element-wise divisions on the approximate unit, under ``fast_exp``."""
    if "fast_exp" not in options:
        return root
    nodes = walk([root])
    exact = {node for node in nodes if node.op == "reduce"}
    table: dict[Expr, Expr] = {}
    for node in nodes:
        if node.op == "div" and node not in exact:
            args = tuple(replace(arg, table) for arg in node.args)
            table[node] = call("quotient", *args)
    return replace(root, table)


def bounds(options: Options, block: str) -> str:
    """Return the launch bounds of a kernel: the block size, and the resident blocks that the strategy asks for."""
    resident = options.number("launch_bounds", "min_blocks", 0)
    return f"__launch_bounds__({block}, {resident})" if resident else f"__launch_bounds__({block})"
