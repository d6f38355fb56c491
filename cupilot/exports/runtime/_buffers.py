"""Allocate the kernel's memory: outputs, workspace, and inputs aligned as those that it was proven with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def allocate(spec: dict[str, Any], device: torch.device, alignment: int) -> torch.Tensor:
    """Return an uninitialised tensor of this shape, strides and dtype, aligned."""
    dtype: torch.dtype = getattr(torch, spec["dtype"])
    tensor = torch.empty_strided(spec["shape"], spec["strides"], dtype=dtype, device=device)
    if tensor.data_ptr() % alignment == 0:
        return tensor
    elements = 1 + sum((size - 1) * step for size, step in zip(spec["shape"], spec["strides"], strict=True))
    flat = scratch(elements * dtype.itemsize, device, alignment).view(dtype)
    return flat.as_strided(spec["shape"], spec["strides"])


def scratch(nbytes: int, device: torch.device, alignment: int) -> torch.Tensor:
    """Return uninitialised bytes, aligned."""
    whole = torch.empty(nbytes, dtype=torch.uint8, device=device)
    if whole.data_ptr() % alignment == 0:
        return whole
    flat = torch.empty(nbytes + alignment, dtype=torch.uint8, device=device)
    return flat[-flat.data_ptr() % alignment :][:nbytes]


def aligned(tensor: torch.Tensor, spec: dict[str, Any], alignment: int) -> torch.Tensor:
    """Return the tensor itself, or a copy of it where its address is not aligned (a view into another tensor)."""
    if tensor.data_ptr() % alignment == 0:
        return tensor
    return allocate(spec, tensor.device, alignment).copy_(tensor)


def prepare(spec: dict[str, Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return everything that a call needs, in the order of :func:`places`, to be kept until it has ended.

    And the outputs.
    """
    device, alignment = tensors[0].device, spec["alignment"]
    outputs = [allocate(item, device, alignment) for item in spec["outputs"]]
    inputs = [aligned(tensor, item, alignment) for tensor, item in zip(tensors, spec["given"], strict=True)]
    workspace = [scratch(nbytes, device, alignment) for nbytes in spec["workspace"].values()]
    return [*inputs, *outputs, *workspace], outputs


def places(spec: dict[str, Any]) -> list[list[int]]:
    """Return, for each launch, the places of its arguments among the tensors given, the outputs and the workspace.

    A tensor map stands where its tensor does.
    """
    names = [*(item["name"] for item in (*spec["given"], *spec["outputs"])), *spec["workspace"]]
    return [[names.index(_tensor_of(name, launch)) for name in launch["args"]] for launch in spec["launches"]]


def _tensor_of(name: str, launch: dict[str, Any]) -> str:
    tensor_map = launch["tensor_maps"].get(name)
    return name if tensor_map is None else str(tensor_map["tensor"])
