"""Finds which elements of given tensors a forward pass reads, by watching its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gpu_worker.judge.counting import PARTIAL
from gpu_worker.reference.watching import ForwardWatch


class ReadWatch(ForwardWatch):  # type: ignore[no-untyped-call]  # torch's own
    """Marks which elements of named tensors a forward pass reads; all of them, unless the call is known to read few."""

    def __init__(self, named: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> None:
        super().__init__()
        self._alive = {id(named[name]): (name, named[name]) for name in wanted}
        self.read = {name: torch.zeros_like(named[name], dtype=torch.bool) for name in wanted}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        partial = str(func).split(".")[1] in PARTIAL
        for place, argument in enumerate([*args, *(kwargs or {}).values()]):
            for tensor in argument if isinstance(argument, list | tuple) else (argument,):
                name, watched = self._alive.get(id(tensor), (None, None))
                if name is None or watched is None:
                    continue
                if partial and place == 0 and watched.is_contiguous():
                    places = torch.arange(watched.numel(), device=watched.device).reshape(watched.shape)
                    self.read[name].view(-1)[func(places, *args[1:], **(kwargs or {})).reshape(-1)] = True
                else:
                    self.read[name].fill_(True)
        return func(*args, **(kwargs or {}))
