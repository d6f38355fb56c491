"""Finds input bytes that cannot change any output, so that the roofline bound does not count them.

The graph may claim that a part of a tensor is never read. That claim is tried: the part is filled with random and with
extreme values, and where an output moves, the tensor counts whole. Where the graph claims nothing, stripes and halves
are tried alike, and what moves no output is left out of the count. Counts nothing itself. Where a change shows less
than there is, the roofline bound becomes too low, which harms nobody; one that is too high would accuse honest kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cupilot.domain.problem import DType, Graph, Role, TensorSpec
from gpu_worker.judge import laws
from gpu_worker.judge.counting import bytes_read, read_in_part, stored_bytes
from gpu_worker.judge.deviation import Expected, largest, unit_of
from gpu_worker.judge.reference_link import ReferenceLink
from gpu_worker.judge.refusal import UnusableReference, out_of_memory
from gpu_worker.judge.structure import like, nonzeros

LOOK_SECONDS = 1.0
"""For what no graph claims. What one claims is tried whatever it takes: three forward passes a tensor."""

MOVED = 1e-4
"""In units of the output's spread: sums in another order differ by 1e-6, values that matter by far more."""


@dataclass(frozen=True)
class Relevance:
    """Result of changing parts of the given tensors."""

    whole: frozenset[str] = frozenset()
    """Tensors of which the graph claims that a part does not matter, and it does."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each tensor that the graph reads in part only, as they were seen to be read: every element once."""
    needless: Mapping[str, int] = field(default_factory=dict)
    """Bytes, of those that are read, that lie in parts which move no output."""
    notes: tuple[str, ...] = ()


@dataclass
class _Trial:
    """One set of given tensors, what the reference gives for it, and which of them may be changed.

    ``exact``: in float64, for outputs in half precision round away what a part of a tensor is worth to a mean.
    """

    reference: ReferenceLink
    given: Sequence[torch.Tensor]
    specs: Sequence[TensorSpec]
    exact: bool
    expected: list[Expected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.expected = [Expected(value.contiguous(), unit_of(value)) for value in self._run(self.given)]

    def moves(self, place: int, part: torch.Tensor) -> bool:
        """Return whether any output moves, or none comes, when the marked elements of a tensor get other values."""
        return any(self._moved(place, changed) for changed in _changes(self.given[place], part))

    def _moved(self, place: int, changed: torch.Tensor) -> bool:
        try:
            outputs = self._run([*self.given[:place], changed, *self.given[place + 1 :]])
        except UnusableReference as error:
            if out_of_memory(error):
                raise
            return True
        same = all(got.shape == want.values.shape for got, want in zip(outputs, self.expected, strict=True))
        return not same or largest(self.expected, [value.contiguous() for value in outputs]) > MOVED

    def _run(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.reference.run_exact(given) if self.exact else self.reference.run(given)


def relevance(
    reference: ReferenceLink, graph: Graph, specs: Sequence[TensorSpec], inputs: Sequence[torch.Tensor]
) -> Relevance:
    """Try what the graph claims of ``inputs``, in the order of ``specs``; then look for what it does not claim.

    Where memory is too short for the one, the graph is believed, whose count is the lower one; for the other, less is
    found.
    """
    named = [spec for spec in specs if spec.role is not Role.OUTPUT]
    parts, counted = read_in_part(graph, specs), bytes_read(graph, tuple(specs))
    claimed = [spec.name for spec in named if spec.name in parts and 0 not in spec.strides]
    unclaimed = [
        place
        for place, spec in enumerate(named)
        if counted[spec.name] == stored_bytes(spec) and spec.role is Role.INPUT
    ]
    whole: list[str] = []
    observed: dict[str, int] = {}
    needless: dict[str, int] = {}
    notes: list[str] = []
    try:
        rounds = any(spec.dtype in (DType.BFLOAT16, DType.FLOAT16) for spec in specs if spec.role is Role.OUTPUT)
        trial = _Trial(reference, inputs, named, exact=rounds)
        reads = reference.reads(inputs, claimed)
        whole.extend(_refuted(trial, reads))
        observed |= {name: nonzeros(read) * inputs[_place(named, name)].element_size() for name, read in reads.items()}
        for name, words, count in _irrelevant(trial, unclaimed, reads):
            needless[name] = count
            notes.append(f"changing {words} of {name} moves no output: the roofline bound leaves {count} bytes out")
    except (RuntimeError, MemoryError, UnusableReference) as error:
        if not out_of_memory(error):
            raise
        notes.append("there was no memory to try which parts of the inputs matter")
    moved = [f"an output moves with what the traced graph does not read of {name}: it counts whole" for name in whole]
    return Relevance(frozenset(whole), observed, needless, (*moved, *notes))


def _refuted(trial: _Trial, reads: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the tensors of which a part that is not among the elements read moves an output."""
    for name, read in reads.items():
        if not bool(read.all()) and trial.moves(_place(trial.specs, name), ~read):
            yield name


def _place(specs: Sequence[TensorSpec], name: str) -> int:
    return next(place for place, spec in enumerate(specs) if spec.name == name)


def _irrelevant(
    trial: _Trial, places: Sequence[int], reads: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, str, int]]:
    """Yield name, irrelevant part in words, and bytes, of each tensor that has such a part, while there is time.

    Parts count together where they move nothing together, else the largest of them alone: of two copies of a value
    that the reference compares, for example, neither matters where the other is right. Of a tensor that is read in
    part, what is not read is left out already, and not counted here.
    """
    end = time.monotonic() + LOOK_SECONDS
    for place in places:
        tensor = trial.given[place]
        if not tensor.is_floating_point() or 0 in tensor.stride():
            continue
        still: list[tuple[str, torch.Tensor]] = []
        for words, part in _parts(tensor):
            if time.monotonic() > end:
                break
            if not trial.moves(place, part):
                still.append((words, part))
        if not still:
            continue
        words, part = " and ".join(words for words, _ in still), torch.stack([part for _, part in still]).any(0)
        if len(still) > 1 and trial.moves(place, part):
            words, part = max(still, key=lambda words_and_part: nonzeros(words_and_part[1]))
        name = trial.specs[place].name
        if count := nonzeros(part & reads[name] if name in reads else part):
            yield name, words, count * tensor.element_size()


def _parts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield stripes and halves along each dimension."""
    for dim, size in enumerate(tensor.shape):
        if size < 2:
            continue
        for words, chosen in (
            (f"indices 0, 2, 4... of dimension {dim}", slice(0, None, 2)),
            (f"indices 1, 3, 5... of dimension {dim}", slice(1, None, 2)),
            (f"the first half of dimension {dim}", slice(0, size // 2)),
            (f"the second half of dimension {dim}", slice(size // 2, None)),
        ):
            part = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
            part[(slice(None),) * dim + (chosen,)] = True
            yield words, part


def _changes(tensor: torch.Tensor, part: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensor with other values in a part: random ones, then the largest and the least that it can hold.

    Of integers, which are indices more often than not: its own values, in another order, and its own extremes.
    """
    makers: list[Callable[[], torch.Tensor]]
    if tensor.is_floating_point():
        most = torch.finfo(tensor.dtype).max
        size = laws.largest_magnitude(tensor) or 1.0
        makers = [
            lambda: torch.randn_like(tensor) * size,
            lambda: torch.full_like(tensor, most),
            lambda: torch.full_like(tensor, -most),
        ]
    else:
        makers = [
            lambda: tensor.reshape(-1)[torch.randperm(tensor.numel(), device=tensor.device)].reshape(tensor.shape),
            lambda: torch.full_like(tensor, tensor.max().item()),
            lambda: torch.full_like(tensor, tensor.min().item()),
        ]
    for make in makers:
        yield like(tensor, torch.where(part, make(), tensor))
