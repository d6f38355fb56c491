"""Results of an imported file that are read where the file left them, in memory that the judge lent it.

Before each block all of the memory that the file calls free is poisoned, while its process is stopped. After the block
a few words of each result are looked at first: where that takes longer than usual, it is part of the block's time, so
that nothing can be finished behind the judge's back. The results are then copied to the slots, and what was looked at
has to be the same still. The runner's word is good for nothing but where to look.
"""

from __future__ import annotations

import bisect
import itertools
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Role, TensorSpec
from gpu_worker.judge.runner_link import KernelFailed, RunnerLink
from gpu_worker.judge.slots import Slots
from gpu_worker.messages.runner import COPIED
from gpu_worker.targets.base import Arena, JudgeDevice

MOST_OUTPUTS = 8
"""More places of a block's results would not fit into an answer."""

SEGMENT_BYTES = 2 * 2**20
MIDDLE_SEGMENT_BYTES = 20 * 2**20
"""PyTorch takes memory for tensors of 1 to 10 MB in segments of 20 MB, for others in multiples of 2 MB."""

SPARE_BYTES = 128 * 2**20
MOST_SPARE_BYTES = 2 * 2**30
"""Room for what forward allocates beside its results: the size of a slot's tensors, within these bounds."""

LOOKED_AT = 4
"""Random words of each result."""


@dataclass(frozen=True)
class Look:
    """Words of results, and how long finding and reading them took."""

    places: torch.Tensor
    words: torch.Tensor
    seconds: float


class LentMemory:
    """One arena for the results of one file."""

    def __init__(self, device: JudgeDevice, slots: Slots, specs: Sequence[TensorSpec]) -> None:
        """Allocate it; raises :class:`torch.OutOfMemoryError`."""
        self._slots = slots
        self._sizes = [spec.storage_elements * spec.dtype.itemsize for spec in _outputs(specs)]
        self._widths = [spec.dtype.itemsize for spec in _outputs(specs)]
        self.arena: Arena = device.allocate(_room(self._sizes, slots))
        self._words = self.arena.bytes.view(torch.int16)
        self._pattern = 0
        self._within = torch.empty(0)
        """Of the words that are looked at, the place in each launch's results."""
        self._free: list[tuple[float, float]] = []
        self._taken: list[tuple[int, int]] = []

    def close(self) -> None:
        """Release the memory."""
        self._words = torch.empty(0, dtype=torch.int16)
        self.arena.close()

    def poison(self, ranges: Sequence[Sequence[int]]) -> None:
        """Fill memory that the file calls free with a NaN, but not CUDA's own (0x7FFF); the file is stopped."""
        self._free, self._taken = [], []
        self._pattern = 0x7FF0 | secrets.randbelow(0xE) + 1
        for item in ranges:
            start, end = self._range(item)
            self._words[start // 2 : end // 2].fill_(self._pattern)
            self._free.append((start, end))
        self._free.sort()

    def _range(self, item: Sequence[int]) -> tuple[int, int]:
        if len(item) != 2 or not 0 <= item[0] < item[1] <= 2 * len(self._words) or item[0] % 2:
            raise _breach("free memory that it was not lent")
        return item[0], item[1]

    def rehearse(self, launches: int) -> float:
        """Choose words to look at after a block; return the seconds in which as many are read from an idle device."""
        shape = (launches, 1, LOOKED_AT)
        self._within = torch.cat([torch.randint(size // 2, shape) for size in self._sizes], dim=1)
        return self.look([[0] * len(self._sizes)] * launches).seconds

    def look(self, places: Sequence[Sequence[int]]) -> Look:
        """Read words of each launch's results. Raises :class:`KernelFailed` for places outside of lent memory."""
        began = time.perf_counter()
        if not all(self._are_places(launch) for launch in places) or len(places) != len(self._within):
            raise _breach("no places of its results")
        starts = torch.tensor(places, dtype=torch.int64).clamp_(min=0)[:, :, None] // 2
        at = (starts + self._within).clamp_(max=len(self._words) - 1).to(self._words.device)
        words = self._words[at].cpu()
        return Look(at, words, time.perf_counter() - began)

    def _are_places(self, launch: Sequence[int]) -> bool:
        limit = 2 * len(self._words)
        return len(launch) == len(self._sizes) and all(COPIED <= place < limit for place in launch)

    def _take(self, places: Sequence[Sequence[int]]) -> None:
        """Check places: in memory that was poisoned, where no other result of this filling lies."""
        for launch in places:
            for place, size, width in zip(launch, self._sizes, self._widths, strict=True):
                if place == COPIED:
                    continue
                around = bisect.bisect(self._free, (place, math.inf)) - 1
                if place % width or around < 0 or place + size > self._free[around][1]:
                    raise _breach("a result outside of the memory that was free")
                self._taken.append((place, place + size))
        self._taken.sort()
        if any(start < end for (_, end), (start, _) in itertools.pairwise(self._taken)):
            raise _breach("two results in one place")

    def adopt(self, order: Sequence[int], places: Sequence[Sequence[int]], look: Look) -> None:
        """Copy results to their slots. Raises :class:`KernelFailed` for impossible places, or if a result changed."""
        self._take(places)
        for slot, launch in zip(order, places, strict=True):
            for index, (place, size) in enumerate(zip(launch, self._sizes, strict=True)):
                if place != COPIED:
                    self._slots.adopt(slot, index, self.arena.bytes[place : place + size], self._pattern)
        if not torch.equal(self._words[look.places].cpu(), look.words):
            message = "a result changed after its launch was reported as done"
            raise KernelFailed(FailureKind.UNWRITTEN_OUTPUT, message, law="timed")


def lend(device: JudgeDevice, slots: Slots, specs: Sequence[TensorSpec], link: RunnerLink) -> LentMemory | None:
    """Lend an imported file's runner memory for results; None where they have to be copied.

    They are copied where the device shares no memory or has no room, where there are many or empty results, and where
    an element is a byte, which could be poison or a value.
    """
    outputs = _outputs(specs)
    readable = all(spec.dtype.itemsize > 1 and spec.storage_elements for spec in outputs)
    if not device.lends or len(outputs) > MOST_OUTPUTS or not readable:
        return None
    try:
        lent = LentMemory(device, slots, specs)
    except torch.OutOfMemoryError:
        return None
    try:
        link.lend(lent.arena.handle, lent.arena.descriptors)
    except BaseException:
        lent.close()
        raise
    return lent


def _outputs(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in specs if spec.role is Role.OUTPUT]


def _room(sizes: Sequence[int], slots: Slots) -> int:
    spare = min(max(slots.tensor_bytes, SPARE_BYTES), MOST_SPARE_BYTES)
    return slots.count * sum(map(_segment, sizes)) + spare


def _segment(size: int) -> int:
    """Return the bytes that a result takes in PyTorch's segments, at most."""
    if size > MIDDLE_SEGMENT_BYTES // 2:
        return -(-size // SEGMENT_BYTES) * SEGMENT_BYTES
    if size > SEGMENT_BYTES // 2:
        return MIDDLE_SEGMENT_BYTES // (MIDDLE_SEGMENT_BYTES // size)
    return 2 * size + 512


def _breach(what: str) -> KernelFailed:
    return KernelFailed(FailureKind.POLICY_BREACH, f"the file's process reported {what}")
