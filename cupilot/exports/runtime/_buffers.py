"""Allocate the kernel's memory: outputs, workspace, and inputs aligned as those that it was proven with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

ALIGNMENT = {"cuda": 256, "cpu": 64}
"""Bytes, by type of device: what vector loads of the kernel may rely on, and what PyTorch's allocators give."""


def is_aligned(tensor: torch.Tensor) -> bool:
    """Return whether it starts where the kernel may expect it to."""
    return tensor.data_ptr() % ALIGNMENT["cuda" if tensor.is_cuda else "cpu"] == 0


def allocate(spec: dict[str, Any], device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor of this shape, strides and dtype, aligned."""
    dtype: torch.dtype = getattr(torch, spec["dtype"])
    tensor = torch.empty_strided(spec["shape"], spec["strides"], dtype=dtype, device=device)
    if is_aligned(tensor):
        return tensor
    elements = 1 + sum((size - 1) * step for size, step in zip(spec["shape"], spec["strides"], strict=True))
    flat = scratch(elements * dtype.itemsize, device).view(dtype)
    return flat.as_strided(spec["shape"], spec["strides"])


def scratch(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return uninitialised bytes, aligned."""
    step = ALIGNMENT[device.type]
    whole = torch.empty(nbytes, dtype=torch.uint8, device=device)
    if is_aligned(whole):
        return whole
    flat = torch.empty(nbytes + step, dtype=torch.uint8, device=device)
    return flat[-flat.data_ptr() % step :][:nbytes]


def aligned(tensor: torch.Tensor, spec: dict[str, Any]) -> torch.Tensor:
    """Return the tensor itself, or a copy of it where its address is not aligned (a view into another tensor)."""
    if is_aligned(tensor):
        return tensor
    return allocate(spec, tensor.device).copy_(tensor)


def prepare(spec: dict[str, Any], tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return everything that a call needs, in the order of :func:`places`, to be kept until it has ended.

    And the outputs.
    """
    device = tensors[0].device
    outputs = [allocate(item, device) for item in spec["outputs"]]
    inputs = [aligned(tensor, item) for tensor, item in zip(tensors, spec["given"], strict=True)]
    return [*inputs, *outputs, *[scratch(nbytes, device) for nbytes in spec["workspace"].values()]], outputs


def places(spec: dict[str, Any]) -> list[list[int]]:
    """Return, for each launch, the places of its arguments among the tensors given, the outputs and the workspace.

    A tensor map stands where its tensor does.
    """
    names = [*(item["name"] for item in (*spec["given"], *spec["outputs"])), *spec["workspace"]]
    return [[names.index(_tensor_of(name, launch)) for name in launch["args"]] for launch in spec["launches"]]


def _tensor_of(name: str, launch: dict[str, Any]) -> str:
    tensor_map = launch["tensor_maps"].get(name)
    return name if tensor_map is None else str(tensor_map["tensor"])
