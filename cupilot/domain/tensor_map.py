"""Tensor maps: how a launch plan describes tiles of a tensor to the Tensor Memory Accelerator (sm_90 and newer).

Checks every rule of the driver's ``cuTensorMapEncodeTiled`` that plan and facts alone can tell, and one more: a map
never reaches beyond its tensor, because stores are clipped to the map's sizes and not to the tensor's. Encoding belongs
to the runner. Source of the rules: CUDA driver API reference, "Tensor Map Object Management".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from math import prod
from operator import mul
from typing import Literal

from pydantic import field_validator

from cupilot.domain.errors import InvalidTensorMap
from cupilot.domain.expression import Formula, evaluate
from cupilot.domain.problem import DType, NumericsPolicy, TensorSpec
from cupilot.domain.value import Value, Vocabulary

MAX_RANK = 5
MAX_BOX = 256
MAX_ELEMENT_STRIDE = 8
MAX_DIMENSION = 2**32
MAX_STRIDE_BYTES = 2**40
MAX_BOX_BYTES = 227 * 1024
"""Shared memory of a block on the devices that have tensor maps (sm_90 to sm_103; others have less)."""

UNIT_BYTES = 16
"""Bytes that strides and the innermost size of a box are multiples of."""

Numbers = Mapping[str, int | float | bool]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")


class MapRule(StrEnum):
    """The rule that a tensor map breaks: stable, in the failure's ``details``."""

    TENSOR = "tensor"
    """No such tensor or workspace."""
    RANK = "rank"
    """One to five dimensions, and as many sizes, strides and steps."""
    ELEMENT = "element"
    """The element type: named for a workspace, as wide as the tensor's, and with NaN fill a floating one."""
    POLICY = "policy"
    """The element type rounds to less than the numerics policy allows."""
    DIMENSION = "dimension"
    """1 to 2^32 elements."""
    INNER_STRIDE = "inner_stride"
    """Elements of the innermost dimension lie side by side."""
    STRIDE = "stride"
    """A multiple of 16 bytes below 2^40."""
    BOX = "box"
    """1 to 256 elements along each dimension, and no more than shared memory holds."""
    INNER_BOX = "inner_box"
    """A multiple of 16 bytes along the innermost dimension."""
    ELEMENT_STRIDE = "element_stride"
    """1 to 8."""
    SWIZZLE = "swizzle"
    """The innermost size of the box is at most the swizzle's span."""
    REACH = "reach"
    """The map ends where its tensor ends, or before."""


class MapElement(Vocabulary):
    """Element type that a tensor map reads."""

    FLOAT32 = "float32"
    FLOAT32_FTZ = "float32_ftz"
    """float32, denormals read as zero."""
    TFLOAT32 = "tfloat32"
    """float32, rounded to TF32 on the way; not under the policy ``fp32``."""
    TFLOAT32_FTZ = "tfloat32_ftz"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    UINT64 = "uint64"
    INT32 = "int32"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in global memory."""
        return int("".join(letter for letter in self.value.removesuffix("_ftz") if letter.isdigit())) // 8

    @property
    def floating(self) -> bool:
        """True if the type has a NaN."""
        return "float" in self.value


_ELEMENT_OF = {
    DType.FLOAT32: MapElement.FLOAT32,
    DType.FLOAT64: MapElement.FLOAT64,
    DType.FLOAT16: MapElement.FLOAT16,
    DType.BFLOAT16: MapElement.BFLOAT16,
    DType.INT64: MapElement.INT64,
    DType.INT32: MapElement.INT32,
    DType.INT16: MapElement.UINT16,
    DType.INT8: MapElement.UINT8,
    DType.UINT8: MapElement.UINT8,
    DType.BOOL: MapElement.UINT8,
}
_ROUNDS = frozenset({MapElement.TFLOAT32, MapElement.TFLOAT32_FTZ})


class Swizzle(Vocabulary):
    """Permutation of the box's 16-byte units in shared memory, so that columns are read without bank conflicts."""

    NONE = "none"
    B32 = "32B"
    B64 = "64B"
    B128 = "128B"

    @property
    def span(self) -> int | None:
        """Bytes that the innermost size of a box may have; None for no bound."""
        return None if self is Swizzle.NONE else int(self.value.removesuffix("B"))


class L2Promotion(Vocabulary):
    """Least number of bytes that L2 fetches."""

    NONE = "none"
    B64 = "64B"
    B128 = "128B"
    B256 = "256B"


class Fill(Vocabulary):
    """Value that is read outside of the map's sizes."""

    ZEROS = "zeros"
    NAN = "nan"


class TensorMap(Value):
    """Tiles of one tensor, for ``cp.async.bulk.tensor``: a kernel's ``const __grid_constant__ CUtensorMap`` argument.

    Dimensions stand innermost first, as in ``cuTensorMapEncodeTiled`` and in the coordinates of the instructions.
    Expressions are over ``problem.h`` and the tunables.
    """

    name: str
    """Its name among a launch's arguments."""
    tensor: str
    """A tensor or a workspace."""
    box: tuple[Formula, ...]
    """Elements that one copy moves along each dimension."""
    dims: tuple[Formula, ...] = ()
    """Elements along each dimension; the tensor's shape unless given. What lies beyond is filled or not stored."""
    strides: tuple[Formula, ...] = ()
    """Elements from one index to the next in each dimension but the innermost. Unless given: those of the tensor where
    ``dims`` are its too, else without gaps."""
    element_strides: tuple[Formula, ...] = ()
    """Steps within the box; 1 unless given."""
    dtype: MapElement | None = None
    """The tensor's unless given; needed for a workspace."""
    interleave: Literal["none"] = "none"
    """No tensor of PyTorch's has another layout."""
    swizzle: Swizzle = Swizzle.NONE
    l2_promotion: L2Promotion = L2Promotion.NONE
    fill: Fill = Fill.ZEROS

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _IDENTIFIER.match(name):
            raise ValueError(f"{name!r} is not a C identifier")
        return name


class ResolvedTensorMap(Value):
    """Tensor map over concrete facts: all that the driver needs but the address."""

    tensor: str
    dtype: MapElement
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes, of each dimension but the innermost."""
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    l2_promotion: L2Promotion = L2Promotion.NONE
    fill: Fill = Fill.ZEROS


class _Checking:
    """Check of one map; raises :class:`InvalidTensorMap` that names it, the field and the rule."""

    def __init__(self, declared: TensorMap, names: Numbers) -> None:
        self._declared = declared
        self._names = names

    def refuse(self, rule: MapRule, field: str, message: str, hint: str | None = None) -> InvalidTensorMap:
        where = f"tensor_maps.{self._declared.name}.{field}"
        return InvalidTensorMap(
            f"tensor map {self._declared.name!r}: {message}", rule=rule.value, where=where, hint=hint
        )

    def numbers(self, field: str, expressions: Sequence[str], count: int) -> list[int]:
        if len(expressions) != count:
            message = f"{field} has {len(expressions)} entries; {count} are expected"
            raise self.refuse(MapRule.RANK, field, message, "list dimensions innermost first")
        return [evaluate(expression, self._names) for expression in expressions]

    def bounded(self, rule: MapRule, field: str, values: Sequence[int], least: int, most: int) -> None:
        for axis, value in enumerate(values):
            if not least <= value <= most:
                raise self.refuse(rule, field, f"{field}[{axis}] is {value}; it must be {least} to {most}")


def resolved(
    declared: TensorMap, spec: TensorSpec | None, nbytes: int, names: Numbers, policy: NumericsPolicy
) -> ResolvedTensorMap:
    """Return a map with every expression evaluated; raises :class:`InvalidTensorMap` where it could not be used.

    ``spec`` is the tensor's, or None for a workspace; ``nbytes`` is how long its memory is.
    """
    checking = _Checking(declared, names)
    element = _element(checking, declared, spec, policy)
    dims = _dims(checking, declared, spec)
    strides = _strides(checking, declared, spec, dims)
    steps = checking.numbers("element_strides", declared.element_strides or ("1",) * len(dims), len(dims))
    checking.bounded(MapRule.ELEMENT_STRIDE, "element_strides", steps, 1, MAX_ELEMENT_STRIDE)
    box = checking.numbers("box", declared.box, len(dims))
    _check_box(checking, declared.swizzle, box, steps, element.itemsize)
    in_bytes = [stride * element.itemsize for stride in strides]
    for axis, stride in enumerate(in_bytes, start=1):
        if stride % UNIT_BYTES or not 0 <= stride < MAX_STRIDE_BYTES:
            message = (
                f"the stride of dimension {axis} is {stride} bytes; it must be a multiple of {UNIT_BYTES} below 2^40"
            )
            hint = "copy into a padded workspace first, or load such a tensor without a map"
            raise checking.refuse(MapRule.STRIDE, "strides", message, hint)
    reach = (1 + sum((size - 1) * step for size, step in zip(dims, (1, *strides), strict=True))) * element.itemsize
    if reach > nbytes:
        message = f"reaches {reach} bytes from the start of {declared.tensor!r}, which has {nbytes}"
        raise checking.refuse(MapRule.REACH, "dims", message)
    return ResolvedTensorMap(
        tensor=declared.tensor,
        dtype=element,
        dims=tuple(dims),
        strides=tuple(in_bytes),
        box=tuple(box),
        element_strides=tuple(steps),
        swizzle=declared.swizzle,
        l2_promotion=declared.l2_promotion,
        fill=declared.fill,
    )


def _element(checking: _Checking, declared: TensorMap, spec: TensorSpec | None, policy: NumericsPolicy) -> MapElement:
    if declared.dtype is None and spec is None:
        raise checking.refuse(MapRule.ELEMENT, "dtype", "a map over a workspace needs a dtype")
    element = declared.dtype or _ELEMENT_OF[spec.dtype]  # type: ignore[union-attr]
    if spec is not None and element.itemsize != spec.dtype.itemsize:
        message = f"{element.value} is not as wide as the elements of {declared.tensor!r}, which are {spec.dtype.value}"
        raise checking.refuse(MapRule.ELEMENT, "dtype", message)
    if declared.fill is Fill.NAN and not element.floating:
        raise checking.refuse(MapRule.ELEMENT, "fill", f"{element.value} has no NaN to fill with")
    if element in _ROUNDS and policy is NumericsPolicy.FP32:
        message = f"{element.value} rounds what it loads, which the policy {policy.value} does not allow"
        raise checking.refuse(MapRule.POLICY, "dtype", message)
    return element


def _dims(checking: _Checking, declared: TensorMap, spec: TensorSpec | None) -> list[int]:
    if declared.dims:
        dims = checking.numbers("dims", declared.dims, len(declared.dims))
    elif spec is None:
        raise checking.refuse(MapRule.RANK, "dims", "a map over a workspace needs dims")
    else:
        dims = list(reversed(spec.shape))
    if not 1 <= len(dims) <= MAX_RANK:
        hint = "give dims and strides that merge dimensions" if len(dims) > MAX_RANK else "give dims"
        raise checking.refuse(MapRule.RANK, "dims", f"{len(dims)} dimensions; 1 to {MAX_RANK} are allowed", hint)
    checking.bounded(MapRule.DIMENSION, "dims", dims, 1, MAX_DIMENSION)
    return dims


def _strides(checking: _Checking, declared: TensorMap, spec: TensorSpec | None, dims: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of each dimension but the innermost."""
    if declared.strides:
        return checking.numbers("strides", declared.strides, len(dims) - 1)
    if declared.dims or spec is None:
        return list(accumulate(dims[:-1], mul))
    inner, *outer = reversed(spec.strides)
    if inner != 1 and dims[0] != 1:
        message = f"elements of the last dimension of {declared.tensor!r} lie {inner} apart"
        hint = "give dims and strides whose first dimension is the one without gaps"
        raise checking.refuse(MapRule.INNER_STRIDE, "dims", message, hint)
    return outer


def _check_box(checking: _Checking, swizzle: Swizzle, box: Sequence[int], steps: Sequence[int], itemsize: int) -> None:
    checking.bounded(MapRule.BOX, "box", box, 1, MAX_BOX)
    inner = box[0] * itemsize
    if inner % UNIT_BYTES:
        message = f"box[0] is {inner} bytes; it must be a multiple of {UNIT_BYTES}"
        raise checking.refuse(MapRule.INNER_BOX, "box", message)
    if swizzle.span is not None and inner > swizzle.span:
        message = f"box[0] is {inner} bytes; at most {swizzle.span} with swizzle {swizzle.value}"
        raise checking.refuse(MapRule.SWIZZLE, "box", message)
    # The step of the innermost dimension is ignored where nothing is interleaved.
    counts = [box[0], *(-(-size // step) for size, step in zip(box[1:], steps[1:], strict=True))]
    total = prod(counts) * itemsize
    if total > MAX_BOX_BYTES:
        message = f"a box of {total} bytes; shared memory holds {MAX_BOX_BYTES}"
        raise checking.refuse(MapRule.BOX, "box", message)
