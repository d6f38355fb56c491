"""Checks that a kernel's machine code keeps the numerics policy that its speed is compared under.

Looks at instructions that exist, not at those that run: dead code of a forbidden kind is a breach too. What software
can imitate with integer instructions is not seen here; the judge's tolerance is what catches it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cupilot.domain.problem import DType, NumericsPolicy

_COMPUTED_CALL = "calls of computed addresses (of a function pointer or a virtual function), whose code cannot be read"

_FORBIDDEN: dict[NumericsPolicy, dict[str, str]] = {
    NumericsPolicy.FP32: {
        "computed_call": _COMPUTED_CALL,
        "tensor_core": "tensor-core instructions",
        "half_arithmetic": "half-precision arithmetic",
        "half_narrowing": "conversions to a 16-bit float",
        "approximate_function": "approximate sines, cosines or hyperbolic tangents (of an intrinsic such as __sinf)",
    },
    NumericsPolicy.TF32: {
        "computed_call": _COMPUTED_CALL,
        "tensor_f16": "fp16 or bf16 tensor-core instructions",
        "tensor_f8": "fp8 tensor-core instructions",
        "tensor_int": "integer tensor-core instructions",
        "half_arithmetic": "half-precision arithmetic",
        "half_narrowing": "conversions to a 16-bit float",
    },
    NumericsPolicy.HALF: {
        "tensor_f8": "fp8 tensor-core instructions",
        "tensor_int": "integer tensor-core instructions",
    },
}

_ALLOWED_BY = {
    "half_narrowing": frozenset({DType.FLOAT16, DType.BFLOAT16}),
    "tensor_int": frozenset({DType.INT8, DType.UINT8}),
}


def breach(instructions: Mapping[str, int], policy: NumericsPolicy, dtypes: Collection[DType] = ()) -> str | None:
    """Return the first rule that the counted instruction families break, in words, or ``None``.

    ``dtypes`` are those of the problem's tensors: narrowing to 16 bits is allowed where one has such a type, and
    integer tensor cores where one has 8-bit integers, because the reference itself then holds such values.
    """
    if count := instructions.get("clock_read"):
        return f"the machine code reads the device's clock ({count} times), which no honest kernel needs"
    for family, words in _FORBIDDEN[policy].items():
        allowed_by = _ALLOWED_BY.get(family, frozenset())
        count = instructions.get(family, 0)
        if count and not allowed_by & set(dtypes):
            return f"the machine code has {count} {words}, which the policy {policy.value} does not allow"
    return None
