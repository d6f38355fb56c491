"""Tensors that pass between a forward pass and kernels: how those that are given lie, and what it returned."""

from __future__ import annotations

from typing import Any

import torch

from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge.copies import dense
from gpu_worker.judge.dtypes import DTYPES
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.reference import loading
from gpu_worker.returned import keyed, leaves


def spec_of(name: str, role: Role, tensor: torch.Tensor) -> TensorSpec:
    """Describe a tensor; an output with gaps is described as kernels write it, without. Raises UnusableReference."""
    loading.check_tensor(name, tensor)
    strides = tensor.stride()
    if role is Role.OUTPUT and not dense(tensor):
        strides = torch.empty(tensor.shape, device="meta").stride()
    return TensorSpec(
        name=name, role=role, dtype=DTYPES[tensor.dtype], shape=tuple(tensor.shape), strides=tuple(strides)
    )


def outputs_in(result: Any, paths: list[str] | None = None) -> list[torch.Tensor]:
    """Return the tensors that a forward pass returned. Raises :class:`UnusableReference` for anything else.

    ``paths`` becomes the path of each in a result with dicts; empty where positions alone tell them apart.
    """
    if paths is not None:
        paths[:] = [path for path, _ in leaves(result)] if keyed(result) else []
    tensors = [leaf for _, leaf in leaves(result)]
    others = [leaf for leaf in tensors if not isinstance(leaf, torch.Tensor)]
    if not tensors or others:
        within = f" with a {type(others[0]).__name__} in it" if others and others[0] is not result else ""
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise UnusableReference(
            f"forward must return a tensor, or tensors alone in a list, tuple or dict; it returns {kind}{within}"
        )
    return tensors
