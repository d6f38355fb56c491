"""Fresh inputs for every timed block: slots are filled with mixtures of hidden draws, so that no result can be
remembered.

Each given tensor of a slot is put together from stretches of several draws, cut at random places, each stretch at its
own place (row by row), so that structure along rows and structural zeros survive. What was written can be checked
afterwards.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cupilot.problem import Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.reference import Reference
from gpu_worker.judge.slots import Slots, flat_storage

STRETCHES = 3


@dataclass(frozen=True)
class Content:
    """What was written to a slot: for each given tensor, (draw, start, end) of its flat storage."""

    stretches: tuple[tuple[tuple[int, int, int], ...], ...]


class Rotation:
    """A pool of draws, and the slots that are filled from it."""

    def __init__(self, reference: Reference, specs: Sequence[TensorSpec], seeds: Sequence[int]) -> None:
        self._specs = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._inputs = sum(spec.role is Role.INPUT for spec in self._specs)
        self._random = random.Random(seeds[0])
        drawn = [reference.draw(seed) for seed in seeds]
        varied = [self._varied(draw, drawn[0], seed) for draw, seed in zip(drawn, seeds, strict=True)]
        self._pool = [[flat_storage(tensor) for tensor in draw] for draw in varied]
        self._mixable = [self._may_mix(spec, tensor) for spec, tensor in zip(self._specs, drawn[0], strict=True)]

    @property
    def inputs(self) -> int:
        """How many of the given tensors are forward's inputs (they come first)."""
        return self._inputs

    def choose_state(self) -> int:
        """Which draw's parameters and buffers the next blocks use."""
        return self._random.randrange(len(self._pool))

    def state(self, which: int) -> list[torch.Tensor]:
        """Flat storages of a draw's parameters and buffers."""
        return self._pool[which][self._inputs :]

    def fill(self, slots: Slots, slot: int, state: int) -> Content:
        """Write a new mixture of inputs and the chosen state into a slot."""
        stretches = []
        for index, storage in enumerate(slots.storages(slot)):
            plan = self._plan(index, state)
            for draw, start, end in plan:
                storage[start:end].copy_(self._pool[draw][index][start:end])
            stretches.append(plan)
        return Content(tuple(stretches))

    def intact(self, slots: Slots, slot: int, content: Content) -> str | None:
        """Name of a given tensor in the slot that is no longer what was written; None where all are."""
        written = zip(self._specs, slots.storages(slot), content.stretches, strict=True)
        for index, (spec, storage, plan) in enumerate(written):
            for draw, start, end in plan:
                source = self._pool[draw][index][start:end]
                if not torch.equal(storage[start:end].view(torch.uint8), source.view(torch.uint8)):
                    return spec.name
        return None

    def _plan(self, index: int, state: int) -> tuple[tuple[int, int, int], ...]:
        length = self._pool[0][index].numel()
        if index >= self._inputs:
            return ((state, 0, length),)
        if not self._mixable[index]:
            return ((self._random.randrange(len(self._pool)), 0, length),)
        row = self._specs[index].shape[-1] if len(self._specs[index].shape) > 1 else 1
        rows = length // row
        cuts = sorted(self._random.randrange(rows + 1) for _ in range(STRETCHES - 1))
        edges = [0, *(cut * row for cut in cuts), length]
        draws = self._random.sample(range(len(self._pool)), min(STRETCHES, len(self._pool)))
        return tuple(
            (draws[part % len(draws)], start, end)
            for part, (start, end) in enumerate(itertools.pairwise(edges))
            if end > start
        )

    def _varied(self, draw: list[torch.Tensor], first: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """The draw with state of its own, and with inputs of its own where ``get_inputs`` always gives the same."""
        generator = torch.Generator(device=draw[0].device).manual_seed(seed)
        result = []
        for index, (tensor, other) in enumerate(zip(draw, first, strict=True)):
            fixed = index >= self._inputs or (draw is not first and torch.equal(tensor, other))
            if fixed and tensor.is_floating_point():
                moved = laws.keep_structure(tensor, laws.jitter(tensor, generator))
                result.append(laws.like(tensor, moved))
            else:
                result.append(tensor)
        return result

    @staticmethod
    def _may_mix(spec: TensorSpec, tensor: torch.Tensor) -> bool:
        return spec.contiguous and not laws.symmetric(tensor)
