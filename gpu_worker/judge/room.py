"""Device memory that the judge and the reference process leave to each other.

What either keeps for its next question saves allocations, which take most of the time of a large problem. So it is kept
while there is room: where a problem's tensors are large for the device, where hardly any memory is free, or where there
was too little once, it is given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cupilot.domain.problem import TensorSpec
from gpu_worker.targets.base import JudgeDevice

LARGE_SHARE = 0.25
"""Of the judge's part of the memory: tensors that together take more are copied several times, by both processes."""

ROOM_SHARE = 0.1
ROOM_SHARE_OF_LARGE = 0.3
"""Of the device's memory; inputs of 8 GiB of a card of 80 were seen to need as much beside what is kept."""


@dataclass
class Room:
    """The memory of one device, as one of the two processes sees it."""

    device: JudgeDevice
    sparing: bool = False
    """True where there was too little before."""

    def is_tight(self, specs: Sequence[TensorSpec]) -> bool:
        """Return whether a problem with these tensors is likely to need all the memory."""
        return self.sparing or self._is_large(sum(spec.nbytes for spec in specs))

    def is_short(self, specs: Sequence[TensorSpec], handed_over: int = 0) -> bool:
        """Return whether too little memory is free for the other process.

        ``handed_over`` is the size of the memory that tensors are handed over in, in bytes.
        """
        is_large = self.is_tight(specs) or self._is_large(handed_over)
        return self.device.free_share() < (ROOM_SHARE_OF_LARGE if is_large else ROOM_SHARE)

    def _is_large(self, size: int) -> bool:
        return size > LARGE_SHARE * self.device.memory_bytes
