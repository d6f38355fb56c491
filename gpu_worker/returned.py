"""Tensors that a forward pass returned, and the path to each: keys of dicts, positions in lists and tuples.

Used in the reference's process and in an imported file's, so it needs torch alone. There it is part of the time that is
measured: containers of Python's own are walked without :mod:`torch.utils._pytree`, which knows the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LEAVES = (torch.Tensor, torch.nn.Parameter, type(None))


def leaves(result: Any) -> list[tuple[str, Any]]:
    """Return all that a result holds but None, in its own order, each with its path, such as ``['cache'][0]``."""
    found: list[tuple[str, Any]] = []
    _collect(result, "", found)
    return found


def keyed(result: Any) -> bool:
    """Return whether a dict is in a result, so that its leaves have names."""
    return isinstance(result, dict) or any(keyed(part) for _, part in _parts(result) or ())


def _collect(value: Any, path: str, found: list[tuple[str, Any]]) -> None:
    parts = _parts(value)
    if parts is not None:
        for key, part in parts:
            _collect(part, f"{path}[{key!r}]", found)
    elif value is not None:
        found.append((path, value))


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the key or position and the value of each part of a container; None for anything else."""
    kind = type(value)
    if kind in _LEAVES:
        return None
    items: Iterable[tuple[Any, Any]]
    if kind is dict:
        items = value.items()
        return items
    if kind in (list, tuple):
        return enumerate(value)
    parts = pytree.tree_leaves(value, is_leaf=lambda part: part is not value)
    if any(part is value for part in parts):
        return None
    return zip(value if isinstance(value, dict) else range(len(parts)), parts, strict=True)
