"""``problem.h``: the shapes, strides and scalars of a problem as C++ constants for its kernels.

One place says which names exist, so that plans (:mod:`cupilot.domain.kernel`), builders and agents agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod

from cupilot.domain.problem import DType, ProblemFacts, TensorSpec

Number = int | float | bool


def constants(facts: ProblemFacts) -> dict[str, Number]:
    """Return every name that ``problem.h`` defines, with its value.

    For a tensor ``x``: ``X_NDIM``, ``X_SIZE`` (elements), ``X_DIM0``..., ``X_STRIDE0``... (elements), ``X_COLS`` (last
    dimension) and ``X_ROWS`` (product of the others). A tensor's constant wins over a scalar of the same name.
    """
    names: dict[str, Number] = dict(facts.scalars)
    for spec in facts.tensors:
        names.update(_tensor_constants(spec))
    return names


def _tensor_constants(spec: TensorSpec) -> dict[str, Number]:
    prefix = spec.name.upper()
    names: dict[str, Number] = {f"{prefix}_NDIM": len(spec.shape), f"{prefix}_SIZE": spec.numel}
    for axis, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        names[f"{prefix}_DIM{axis}"] = size
        names[f"{prefix}_STRIDE{axis}"] = stride
    names[f"{prefix}_ROWS"] = prod(spec.shape[:-1])
    names[f"{prefix}_COLS"] = spec.shape[-1] if spec.shape else 1
    return names


def render(facts: ProblemFacts, tunables: Mapping[str, int]) -> str:
    """Return the text of ``problem.h`` for a problem and a plan's tunable values.

    A tensor ``x`` of another type than float32 also has a macro, such as ``X_FLOAT16``, for kernels of several dtypes.
    """
    lines = ["#pragma once", "// Generated: shapes, strides (elements) and scalars of the problem, then the tunables."]
    lines += [f"#define {spec.name.upper()}_{spec.dtype.upper()} 1" for spec in facts.tensors if not _is_default(spec)]
    lines += [_definition(name, value) for name, value in sorted(constants(facts).items())]
    lines += [f"constexpr int {name} = {value};" for name, value in sorted(tunables.items())]
    return "\n".join(lines) + "\n"


def _is_default(spec: TensorSpec) -> bool:
    return spec.dtype is DType.FLOAT32


def _definition(name: str, value: Number) -> str:
    if isinstance(value, bool):
        return f"constexpr bool {name} = {'true' if value else 'false'};"
    if isinstance(value, int):
        return f"constexpr long long {name} = {value}LL;"
    if not isfinite(value):
        return f"// {name} is {value}"
    return f"constexpr double {name} = {value!r};"
