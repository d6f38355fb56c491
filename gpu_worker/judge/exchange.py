"""Hands tensors between judge and reference: layouts as JSON, bytes in memory that the judge owns.

Both sides place the tensors of one message one behind the other, so that only their layouts are said. The judge takes a
private copy of what it is given: the other side could change the shared bytes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from cupilot.domain.problem import DType, TensorSpec
from gpu_worker.judge.dtypes import TORCH_DTYPES
from gpu_worker.targets.base import ALIGNMENT

MAX_TENSORS = 2048
"""In one message. A model has at most 512 parameters and buffers; each output may come with what it selects from."""

MAX_DIMENSIONS = 64
"""PyTorch's own limit."""

_DTYPES = {item.value: TORCH_DTYPES[item] for item in DType}


class NotALayout(Exception):
    """A peer sent a layout that describes no tensor, or one that is too large."""


@dataclass(frozen=True)
class TensorLayout:
    """Type, shape and strides (in elements) of a tensor whose storage range is handed over, gaps included."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """Return the layout of a tensor."""
        return cls(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))

    @classmethod
    def of_spec(cls, spec: TensorSpec) -> TensorLayout:
        """Return the layout of a tensor of the problem."""
        return cls(TORCH_DTYPES[spec.dtype], spec.shape, spec.strides)

    @classmethod
    def from_json(cls, data: Any, most_bytes: int) -> TensorLayout:
        """Return a layout that a peer sent; raises :class:`NotALayout`, also beyond ``most_bytes``."""
        try:
            name, shape, strides = data
            layout = cls(_DTYPES[name], tuple(map(_size, shape)), tuple(map(_size, strides)))
        except (KeyError, TypeError, ValueError) as error:
            raise NotALayout("not a tensor's layout") from error
        if len(layout.shape) != len(layout.strides) or len(layout.shape) > MAX_DIMENSIONS:
            raise NotALayout("a tensor's shape and strides do not match")
        if max(layout.nbytes, prod(layout.shape) * layout.dtype.itemsize) > most_bytes:
            raise NotALayout(f"a tensor of shape {list(layout.shape)} is larger than {most_bytes} bytes")
        return layout

    def as_json(self) -> list[Any]:
        """Return the layout for the channel."""
        return [str(self.dtype).removeprefix("torch."), list(self.shape), list(self.strides)]

    @property
    def span(self) -> int:
        """Elements from the first to the last in storage; 0 for a tensor without elements."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the storage range."""
        return self.span * self.dtype.itemsize

    def view(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """Return the tensor where it lies in ``memory`` (uint8, one dimension), ``offset`` in bytes."""
        flat = memory[offset : offset + self.nbytes].view(self.dtype)
        return self._shaped(flat)

    def copy(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """Return what :meth:`view` returns, in private memory."""
        return self._shaped(memory[offset : offset + self.nbytes].clone().view(self.dtype))

    def _shaped(self, flat: torch.Tensor) -> torch.Tensor:
        if self.span == 0:
            return flat.reshape(self.shape)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset())


def places(layouts: Sequence[TensorLayout]) -> tuple[list[int], int]:
    """Return byte offset of each tensor, and the bytes of all."""
    offsets, position = [], 0
    for layout in layouts:
        offsets.append(position)
        position += -(-layout.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, position


def layouts_from_json(data: Any, most_bytes: int) -> list[TensorLayout]:
    """Return the layouts that a peer sent; raises :class:`NotALayout`, also where all take more than ``most_bytes``."""
    if not isinstance(data, list) or len(data) > MAX_TENSORS:
        raise NotALayout("not a list of layouts")
    layouts = [TensorLayout.from_json(item, most_bytes) for item in data]
    if places(layouts)[1] > most_bytes:
        raise NotALayout(f"tensors of more than {most_bytes} bytes together")
    return layouts


def write(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
    """Copy the storage ranges of tensors to their places in ``memory``."""
    layouts = [TensorLayout.of(tensor) for tensor in tensors]
    for tensor, layout, offset in zip(tensors, layouts, places(layouts)[0], strict=True):
        if layout.span:
            flat = tensor.detach().as_strided((layout.span,), (1,), tensor.storage_offset())
            memory[offset : offset + layout.nbytes].view(layout.dtype).copy_(flat)


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError("not a size")
    return value
