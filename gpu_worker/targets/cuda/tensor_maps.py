"""Tensor maps as the driver encodes them: 128 opaque bytes, passed to a kernel by value.

Standard library only. Not through cuda-bindings: the driver wants the map at a multiple of 64, and an object of theirs
lies where Python put it. What a plan may ask for: :mod:`cupilot.domain.tensor_map`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

BYTES = 128
ALIGNMENT = 128
"""Of ``CUtensorMap`` in CUDA 13's cuda.h; the driver asks for 64."""

FIRST_CAPABILITY = 9
"""Major compute capability of the first devices that have tensor maps."""

ELEMENTS = {
    "uint8": 0,
    "uint16": 1,
    "uint32": 2,
    "int32": 3,
    "uint64": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float32_ftz": 10,
    "tfloat32": 11,
    "tfloat32_ftz": 12,
}
"""``CUtensorMapDataType``."""

SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
PROMOTIONS = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
FILLS = {"zeros": 0, "nan": 1}
_NOT_INTERLEAVED = 0


class EncodingRefused(Exception):
    """The driver does not make such a map."""


class Encoded:
    """A tensor map in memory that is aligned as the driver wants it."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT


def encode(tensor_map: Mapping[str, Any], pointer: int) -> Encoded:
    """Return the map of a ``ResolvedTensorMap`` (as JSON) over the memory at ``pointer``."""
    encoded = Encoded()
    status = _encoder()(
        ctypes.c_void_p(encoded.address),
        ctypes.c_int(ELEMENTS[tensor_map["dtype"]]),
        ctypes.c_uint32(len(tensor_map["dims"])),
        ctypes.c_void_p(pointer),
        _array(ctypes.c_uint64, tensor_map["dims"]),
        _array(ctypes.c_uint64, tensor_map["strides"]),
        _array(ctypes.c_uint32, tensor_map["box"]),
        _array(ctypes.c_uint32, tensor_map["element_strides"]),
        ctypes.c_int(_NOT_INTERLEAVED),
        ctypes.c_int(SWIZZLES[tensor_map["swizzle"]]),
        ctypes.c_int(PROMOTIONS[tensor_map["l2_promotion"]]),
        ctypes.c_int(FILLS[tensor_map["fill"]]),
    )
    if status != 0:
        raise EncodingRefused(
            f"the driver refuses a tensor map over {tensor_map['tensor']!r} with error {status}: {tensor_map}"
        )
    return encoded


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * max(len(values), 1))(*values)


@cache
def _encoder() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
