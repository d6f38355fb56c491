"""Device memory that the judge and the reference process leave to each other.

What either keeps for its next question saves allocations, which take most of the time of a large problem. So it is kept
while there is room: where a problem's tensors are large for the device, where too little memory is free for copies of
what is handed over, or where there was too little once, it is given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cupilot.domain.problem import TensorSpec
from gpu_worker.targets.base import JudgeDevice

LARGE_SHARE = 0.25
"""Of the judge's part of the memory: tensors that together take more are copied several times, by both processes."""

COPIES = 3
"""Of what is handed over in one direction, which the other process may make beside what is kept."""

LEAST_ROOM_SHARE = 0.25
MOST_ROOM_SHARE = 0.75
"""Of the judge's part of the memory: bounds of the room for these copies."""


@dataclass
class Room:
    """The memory of one device, as one of the two processes sees it."""

    device: JudgeDevice
    sparing: bool = False
    """True where there was too little before."""

    def is_tight(self, specs: Sequence[TensorSpec]) -> bool:
        """Return whether a problem with these tensors is likely to need all the memory."""
        return self.sparing or sum(spec.nbytes for spec in specs) > LARGE_SHARE * self.device.memory_bytes

    def is_short(self, specs: Sequence[TensorSpec], handed_over: int = 0) -> bool:
        """Return whether too little memory is free for the other process.

        ``handed_over`` is the size of the memory that tensors are handed over in, in either direction, in bytes.
        """
        share = COPIES * handed_over / 2 / self.device.memory_bytes
        wanted = MOST_ROOM_SHARE if self.is_tight(specs) else min(max(share, LEAST_ROOM_SHARE), MOST_ROOM_SHARE)
        return self.device.free_bytes() < wanted * self.device.memory_bytes
