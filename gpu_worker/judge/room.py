"""When the judge and the reference process leave device memory to each other.

What either keeps for its next question saves allocations, which take most of the time of a large problem. So it is kept
while there is room: where a problem's tensors are large for the device, or hardly any memory is free, it is given back.
"""

from __future__ import annotations

from collections.abc import Sequence

from cupilot.domain.problem import TensorSpec
from gpu_worker.targets.base import JudgeDevice

LARGE_SHARE = 0.25
"""Of the judge's part of the memory: tensors that together take more are copied several times, by both processes."""

ROOM_SHARE = 0.1
ROOM_SHARE_OF_LARGE = 0.3
"""Of the device's memory; inputs of 8 GiB of a card of 80 were seen to need as much beside what is kept."""


def is_large(specs: Sequence[TensorSpec], device: JudgeDevice) -> bool:
    """Return whether a problem's tensors are large for the device."""
    return sum(spec.nbytes for spec in specs) > LARGE_SHARE * device.memory_bytes


def is_short(specs: Sequence[TensorSpec], device: JudgeDevice) -> bool:
    """Return whether too little memory is free for the other process."""
    return device.free_share() < (ROOM_SHARE_OF_LARGE if is_large(specs, device) else ROOM_SHARE)
