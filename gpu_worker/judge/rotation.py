"""Fresh inputs for every timed launch: slots are filled with mixtures of hidden draws, so that no result can be
remembered.

A tensor takes each of its elements from one of two draws, by a stretch of random bits that begins at a random place: no
row, image or channel comes again as a whole, so that none can be recognised by a few of its elements and answered from
memory. Every element is one that the problem itself drew, at its own place: structural zeros and ranges survive. The
bits of symmetric matrices are symmetric too; where the reference has no answer to such a mixture (a Cholesky factor),
they are rolled along their diagonal instead. Tensors whose neighbours belong together (sorted offsets, permutations)
are put together from a few stretches. What was written can be made again, and compared.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference
from gpu_worker.judge.slots import Slots, flat_storage, same_bytes

STRETCHES = 3
MIXTURES_TRIED = 3

BITS = laws.NOISE_PERIOD
"""Random bits decide for so many elements and begin again: at which of as many places they begin is drawn anew."""

PIECE = laws.NOISE_PERIODS * BITS
"""So many elements are made again at a time, to be compared: inputs of 16 GB leave no room for a second one."""


@dataclass(frozen=True)
class Part:
    """Where a stretch of a tensor's flat storage comes from."""

    start: int
    end: int
    draws: tuple[int, ...]
    """One draw, or two that are mixed element by element."""
    bits: int = 0
    """Of two draws: where the bits begin."""
    symmetric: bool = False
    """Of two draws: whether a bit belongs to a row and its column, and an element goes by whether its two differ."""
    shift: int = 0
    """Of one draw of symmetric matrices: by how much its rows and columns are rolled."""

    def pieces(self) -> Iterator[Part]:
        """Yield the same in pieces of :data:`PIECE` elements, where it can be cut."""
        if self.shift or self.symmetric:
            yield self
            return
        for start in range(self.start, self.end, PIECE):
            yield replace(self, start=start, end=min(start + PIECE, self.end))


@dataclass(frozen=True)
class Content:
    """Contents of a slot: the parts of each input, and the parameters and buffers themselves."""

    parts: tuple[tuple[Part, ...], ...]
    state: Sequence[torch.Tensor]


class Rotation:
    """A pool of draws, and the slots that are filled from it."""

    def __init__(self, reference: ReferenceLink, specs: Sequence[TensorSpec], seeds: Sequence[int]) -> None:
        self._specs = [spec for spec in specs if spec.role is not Role.OUTPUT]
        self._inputs = sum(spec.role is Role.INPUT for spec in self._specs)
        self._random = random.Random(seeds[0])
        drawn = [reference.draw(seed) for seed in seeds]
        varied = [self._with_own_state(draw, drawn[0], seed) for draw, seed in zip(drawn, seeds, strict=True)]
        self._pool = [[flat_storage(tensor) for tensor in draw] for draw in varied]
        self._together = [laws.belong_together(versions) for versions in zip(*varied, strict=True)]
        device = drawn[0][0].device
        generator = torch.Generator(device=device).manual_seed(seeds[0])
        self._bits = torch.rand(2 * BITS, generator=generator, device=device) < 0.5
        self._symmetric = [
            laws.symmetric(tensor) and 0 not in spec.strides for tensor, spec in zip(drawn[0], self._specs, strict=True)
        ]
        self._rolled = False
        self._rolled = any(self._symmetric) and not self._answers_mixtures(reference)

    @property
    def inputs(self) -> int:
        """Number of given tensors that are forward's inputs (they come first)."""
        return self._inputs

    def choose_state(self) -> list[torch.Tensor]:
        """Return parameters and buffers for the next blocks, as flat storages: new mixtures too."""
        return [self._filled(index) for index in range(self._inputs, len(self._specs))]

    def fill(self, slots: Slots, slot: int, state: Sequence[torch.Tensor]) -> Content:
        """Write a new mixture of inputs and the chosen state into a slot."""
        parts = tuple(self._plan(index) for index in range(self._inputs))
        storages = slots.storages(slot)
        for index, plan in enumerate(parts):
            for part in plan:
                self._write(storages[index][part.start : part.end], index, part)
        for storage, values in zip(storages[self._inputs :], state, strict=True):
            storage.copy_(values)
        return Content(parts, state)

    def intact(self, slots: Slots, slot: int, content: Content) -> str | None:
        """Name of a given tensor in the slot that is no longer what was written; None where all are."""
        storages = slots.storages(slot)
        for index, (spec, storage) in enumerate(zip(self._specs, storages, strict=True)):
            if index < self._inputs:
                same = all(
                    self._holds(storage, index, piece) for part in content.parts[index] for piece in part.pieces()
                )
            else:
                same = same_bytes(storage, content.state[index - self._inputs])
            if not same:
                return spec.name
        return None

    def _holds(self, storage: torch.Tensor, index: int, part: Part) -> bool:
        present = storage[part.start : part.end]
        written = torch.empty_like(present)
        self._write(written, index, part)
        return same_bytes(present, written)

    def _filled(self, index: int) -> torch.Tensor:
        made = torch.empty_like(self._pool[0][index])
        for part in self._plan(index):
            self._write(made[part.start : part.end], index, part)
        return made

    def _write(self, into: torch.Tensor, index: int, part: Part) -> None:
        first, *second = (self._pool[draw][index][part.start : part.end] for draw in part.draws)
        if part.symmetric:
            self._mix_symmetric(into, first, second[0], self._specs[index], part.bits)
        elif second:
            self._mix(into, first, second[0], part.bits)
        elif part.shift:
            shape = self._specs[index].shape
            into.view(shape).copy_(first.view(shape).roll((part.shift, part.shift), (-2, -1)))
        else:
            into.copy_(first)

    def _mix(self, into: torch.Tensor, first: torch.Tensor, second: torch.Tensor, begin: int) -> None:
        """Take each element from one of the two, in one call for all whole periods of the bits and one for the rest."""
        bits = self._bits[begin : begin + BITS]
        whole = into.numel() // BITS * BITS
        if whole:
            rows = (-1, BITS)
            torch.where(bits, first[:whole].view(rows), second[:whole].view(rows), out=into[:whole].view(rows))
        if whole < into.numel():
            torch.where(bits[: into.numel() - whole], first[whole:], second[whole:], out=into[whole:])

    def _mix_symmetric(
        self, into: torch.Tensor, first: torch.Tensor, second: torch.Tensor, spec: TensorSpec, begin: int
    ) -> None:
        into.copy_(first)  # what lies between rows too
        bits = self._bits[begin : begin + spec.shape[-1]]
        matrices = (tensor.as_strided(spec.shape, spec.strides) for tensor in (first, second))
        torch.where(bits[:, None] == bits, *matrices, out=into.as_strided(spec.shape, spec.strides))

    def _plan(self, index: int) -> tuple[Part, ...]:
        first, spec = self._pool[0][index], self._specs[index]
        length = first.numel()
        if self._symmetric[index] and self._rolled:
            rolls = spec.contiguous and laws.zero_share(first) <= laws.STRUCTURAL_ZEROS
            shift = self._random.randrange(spec.shape[-1]) if rolls else 0
            return (Part(0, length, (self._any_draw(),), shift=shift),)
        if not self._together[index]:
            draws = tuple(self._random.sample(range(len(self._pool)), 2))
            return (Part(0, length, draws, self._random.randrange(BITS), symmetric=self._symmetric[index]),)
        if index >= self._inputs or not spec.contiguous:
            return (Part(0, length, (self._any_draw(),)),)
        return self._stretches(spec, length)

    def _answers_mixtures(self, reference: ReferenceLink) -> bool:
        """Return whether the reference has finite answers to mixtures; of positive definite matrices it seldom has."""
        for _ in range(MIXTURES_TRIED):
            storages = [self._filled(index) for index in range(len(self._specs))]
            inputs = [
                storage.as_strided(spec.shape, spec.strides)
                for storage, spec in zip(storages, self._specs, strict=True)
            ]
            try:
                outputs = reference.run(inputs)
            except UnusableReference as error:
                if error.kind is FailureKind.OUT_OF_MEMORY:
                    raise
                return False
            if not all(bool(output.isfinite().all()) for output in outputs):
                return False
        return True

    def _any_draw(self) -> int:
        return self._random.randrange(len(self._pool))

    def _stretches(self, spec: TensorSpec, length: int) -> tuple[Part, ...]:
        """Return stretches of whole rows, cut at random places, of one draw each."""
        row = spec.shape[-1] if len(spec.shape) > 1 else 1
        rows = length // row
        cuts = sorted(self._random.randrange(rows + 1) for _ in range(STRETCHES - 1))
        edges = [0, *(cut * row for cut in cuts), length]
        draws = self._random.sample(range(len(self._pool)), min(STRETCHES, len(self._pool)))
        return tuple(
            Part(start, end, (draws[part % len(draws)],))
            for part, (start, end) in enumerate(itertools.pairwise(edges))
            if end > start
        )

    def _with_own_state(self, draw: list[torch.Tensor], first: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Give the draw state of its own, and inputs of its own where ``get_inputs`` always gives the same."""
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
