"""The signature of an imported file: what it is constructed and called with, as the judge sends it to the runner.

Plain JSON, so that the runner unpickles nothing and the judge says nothing that it does not mean to say: constructor
arguments, forward's arguments with names in place of tensors, and the layout of each named tensor. No reference, no
seed and no expected output is in it. Torch is needed, cupilot is not: the runner does not have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch


class NotPortable(Exception):
    """An argument that cannot be sent to another process."""


@dataclass(frozen=True)
class TensorArgument:
    """Stands for a named tensor among arguments."""

    name: str


@dataclass(frozen=True)
class Layout:
    """A tensor at the kernel boundary."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def view(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """Return this tensor where it lies in the arena, ``offset`` in bytes."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        span = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        flat = memory[offset : offset + span * dtype.itemsize].view(dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset())


@dataclass(frozen=True)
class Signature:
    """Arguments of the reference's ``Model``; an imported ``ModelNew`` is constructed and called in the same way."""

    constructor: tuple[tuple[Any, ...], dict[str, Any]]
    """Positional and keyword arguments."""
    arguments: tuple[Any, ...]
    """Of forward; :class:`TensorArgument` where a tensor belongs."""
    state: Mapping[str, str]
    """Name at the boundary of each parameter and buffer, by its key in the module."""
    tensors: tuple[Layout, ...]
    """Inputs, parameters and buffers, outputs, in the order of the problem's facts."""
    policy: str
    constructor_names: tuple[str, ...] = ()
    """Of the constructor's positional arguments."""
    output_paths: tuple[str, ...] = ()
    """Of each output in what forward returns (:mod:`gpu_worker.returned`); none where no dict is in it."""

    def as_json(self) -> dict[str, Any]:
        """Return the signature for the channel; raises :class:`NotPortable`."""
        args, kwargs = self.constructor
        return {
            "constructor": [_portable(list(args)), _portable(dict(kwargs))],
            "arguments": _portable(list(self.arguments)),
            "state": dict(self.state),
            "tensors": [asdict(layout) for layout in self.tensors],
            "policy": self.policy,
            "constructor_names": list(self.constructor_names),
            "output_paths": list(self.output_paths),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Return the signature that :meth:`as_json` made this of."""
        args, kwargs = data["constructor"]
        layouts = [
            Layout(**{**item, "shape": tuple(item["shape"]), "strides": tuple(item["strides"])})
            for item in data["tensors"]
        ]
        return cls(
            (tuple(_restored(args)), _restored(kwargs)),
            tuple(_restored(data["arguments"])),
            data["state"],
            tuple(layouts),
            data["policy"],
            tuple(data["constructor_names"]),
            tuple(data["output_paths"]),
        )

    def constructor_arguments(self) -> dict[str, Any]:
        """Return all of them by name, the positional ones first."""
        args, kwargs = self.constructor
        return dict(zip(self.constructor_names, args, strict=False)) | kwargs

    def layout(self, name: str) -> Layout:
        """Return the layout of the tensor of this name."""
        return next(item for item in self.tensors if item.name == name)

    def outputs(self) -> tuple[Layout, ...]:
        """Return the outputs' layouts, in the order in which forward returns them."""
        return tuple(item for item in self.tensors if item.role == "output")


def filled(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return arguments with tensors in their places."""
    if isinstance(value, TensorArgument):
        return tensors[value.name]
    if isinstance(value, list | tuple):
        return type(value)(filled(item, tensors) for item in value)
    if isinstance(value, dict):
        return {key: filled(item, tensors) for key, item in value.items()}
    return value


def _portable(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, TensorArgument):
        return {"tensor": value.name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if type(value) in (list, tuple, torch.Size):
        return {"list" if type(value) is list else "tuple": [_portable(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[_portable(key), _portable(item)] for key, item in value.items()]}
    raise NotPortable(f"an argument is a {type(value).__name__}, which cannot be handed to another process")


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return TensorArgument(content)
    if kind == "dtype":
        return getattr(torch, content)
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {_restored(key): _restored(item) for key, item in content}
    items = [_restored(item) for item in content]
    return items if kind == "list" else tuple(items)
