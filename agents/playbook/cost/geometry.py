"""Use that a kernel's launches make of a card: resident blocks, waves, and bytes in flight."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from cupilot.domain.hardware import Device
from cupilot.domain.kernel import Kernel, resolve
from cupilot.domain.problem import ProblemFacts

MOST_BLOCKS = 32
"""Blocks that a multiprocessor holds at most."""
LATENCY = 0.6e-6
"""Seconds from a load to its value, main memory of current cards under load."""
HALF_SPEED = 0.15
"""Share of the bytes that bandwidth times latency asks for with which half of the bandwidth is reached."""
UNIT_SPEED = 1.8
"""Bandwidth that one multiprocessor reaches alone, over its share where all of them read."""


@dataclass(frozen=True)
class Geometry:
    """The launch with the most threads, and how many launches there are."""

    blocks: int
    threads: int
    """A block's."""
    resident: int
    """Blocks that one multiprocessor holds."""
    units: int
    launches: int

    @property
    def waves(self) -> float:
        """Blocks over those that the card holds."""
        return self.blocks / (self.resident * self.units)

    @property
    def filled(self) -> float:
        """Share of the waves' places that have a block: what the last, partial wave wastes."""
        return self.waves / ceil(self.waves) if self.waves > 1 else 1.0

    @property
    def busy(self) -> float:
        """Share of the multiprocessors that have a block at all."""
        return min(1.0, self.blocks / self.units)

    @property
    def threads_in_flight(self) -> float:
        """Threads of all resident blocks."""
        return min(self.blocks, self.resident * self.units) * self.threads

    def streaming(self, bandwidth: float, bytes_a_thread: float) -> float:
        """Return the share of the bandwidth that loads in flight can use, by Little's law, and busy multiprocessors."""
        moving = self.threads_in_flight * bytes_a_thread
        return min(moving / (moving + HALF_SPEED * bandwidth * LATENCY), UNIT_SPEED * self.busy)


def geometry(kernel: Kernel, facts: ProblemFacts, device: Device, registers: int) -> Geometry:
    """Return how a kernel's widest launch fills the device, with so many registers a thread."""
    launches = resolve(kernel, facts).launches
    widest = max(launches, key=lambda launch: prod(launch.grid) * prod(launch.block))
    threads = prod(widest.block)
    limits = [
        MOST_BLOCKS,
        (device.threads_per_unit or 2048) // threads,
        (device.registers_per_unit or 65536) // (registers * threads),
    ]
    if widest.shared_bytes:
        limits.append((device.shared_bytes_per_block or 48 * 1024) // widest.shared_bytes)
    return Geometry(prod(widest.grid), threads, max(1, min(limits)), max(device.units, 1), len(launches))
