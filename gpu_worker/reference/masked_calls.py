"""Calls on rows that a mask selects, followed as calls on all rows: a tensor of the former stands for the latter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from cupilot.domain.problem import GraphNode
from gpu_worker.reference.masked_rows import SELECTING, Masked, Rows, Step, any_rows, selected
from gpu_worker.reference.row_rules import follow


class MaskedCalls:
    """Tensors of selected rows of one forward pass, and all rows that they stand for."""

    def __init__(
        self, nodes: Sequence[GraphNode], name: Callable[[torch.Tensor], str], encode: Callable[[Any], Any]
    ) -> None:
        self._nodes = nodes
        self._name = name
        self._encode = encode
        self._rows: dict[int, tuple[torch.Tensor, Masked]] = {}
        """Tensors of selected rows, kept alive, and all rows, by the ids of the former."""
        self._keys: dict[Any, int] = {}

    def of(self, value: Any) -> Masked | None:
        """Return what a tensor of selected rows stands for; None for anything else."""
        return self._rows[id(value)][1] if id(value) in self._rows else None

    def concerns(self, func: Any, values: Iterable[Any]) -> bool:
        """Return whether a call may select rows, or is given selected ones."""
        return func._overloadpacket.__name__ in SELECTING or any_rows(self.of, list(values))

    def results(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], named: dict[str, Any]
    ) -> list[Any] | None:
        """Make a call of all rows, and return these for each result, or the result where it has no rows.

        None for a call that neither selects nor is given selected rows. Raises where it cannot be made of all rows.
        """
        chosen = selected(func, args)
        if chosen is not None:
            return [chosen.rows(self.of, self._key, (str(func), tuple(map(self._encode, args))))]
        first = next((rows for item in _leaves(list(named.values())) if (rows := self.of(item)) is not None), None)
        if first is None:
            return None
        return [
            _stood_for(item, first) for item in follow(Step(func, args, dict(kwargs), named, self.of, self._key, first))
        ]

    def settle(self, made: Sequence[torch.Tensor], found: Sequence[Any], written: Sequence[torch.Tensor]) -> None:
        """Remember what the results of a call stand for, and forget it of other tensors that see what it wrote."""
        storages = {tensor.untyped_storage()._cdata for tensor in written}
        for key, (tensor, _) in list(self._rows.items()):
            if tensor.untyped_storage()._cdata in storages:
                del self._rows[key]
        self._rows |= {id(tensor): (tensor, rows) for tensor, rows in zip(made, found, strict=True)}

    def _key(self, mask: torch.Tensor) -> int:
        """Return a number that is equal for masks which the same calls made of the same values."""
        makers = {name: node for node in self._nodes for name in node.results}

        def key(name: str) -> int:
            node = makers.get(name)
            made: Any = name
            if node is not None:
                made = node.op, node.results.index(name), repr(of([*node.args, node.kwargs]))
            return self._keys.setdefault(made, len(self._keys))

        def of(value: Any) -> Any:
            if isinstance(value, list):
                return [of(item) for item in value]
            if isinstance(value, dict):
                return key(value["ref"]) if set(value) == {"ref"} else {name: of(item) for name, item in value.items()}
            return value

        return key(self._name(mask))


def _stood_for(item: Any, first: Masked) -> Any:
    """Return all rows of a result; one without rows as it is."""
    if not isinstance(item, Rows):
        return item
    if item.axis is None:
        return item.value
    mask, key = (first.mask, first.key) if item.mask is None else (item.mask, item.key)
    return Masked(item.value, mask, item.axis, key, first.origin)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
