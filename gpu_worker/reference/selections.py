"""Finds what index outputs (``argmax`` and its kin) select from, by watching a forward pass in float64."""

from __future__ import annotations

from typing import Any

import torch

from gpu_worker.judge.deviation import Selection
from gpu_worker.reference.watching import ForwardWatch

_SELECTING = {"aten.argmax": None, "aten.argmin": None, "aten.max.dim": 1, "aten.min.dim": 1}
"""Call, and which of its results is the index (None: the only one)."""


class SelectionWatch(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Remembers the selecting calls of a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[torch.Tensor, Selection, int | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for name, position in _SELECTING.items():
            if str(func).startswith(name):
                index = result if position is None else result[position]
                dim = args[1] if len(args) > 1 else kwargs.get("dim")
                keepdim = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
                self._seen.append((index, Selection(args[0], dim, keepdim), _version(args[0])))
        return result

    def selection(self, output: torch.Tensor) -> Selection | None:
        """Return what this output selects from; None for one that holds no indices, or where that was changed since."""
        if output.is_floating_point():
            return None
        for index, selection, version in self._seen:
            if _same(index, output):
                return selection if version is not None and version == _version(selection.values) else None
        return None


def _version(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was changed in place; None where PyTorch does not count it."""
    return None if tensor.is_inference() else tensor._version


def _same(index: torch.Tensor, output: torch.Tensor) -> bool:
    return index.data_ptr() == output.data_ptr() and index.shape == output.shape
