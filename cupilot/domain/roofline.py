"""Place a problem on the roofline: its zone between two ridge points, and the bound that no kernel can beat.

Model: Williams, Waterman, Patterson, "Roofline" (CACM 2009); the two ridge points and three zones are cuPilot's
(arXiv 2512.16465). Takes peaks, measured and stated; measures nothing itself.

Two counts of operations stand side by side. The **floor** counts memory and what the best algorithms known need: only
it is a bound. The **direct** count is of the reference's operations as they are written; a kernel may beat it with a
faster algorithm, as Winograd's for convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from cupilot.domain.data_sheets import StatedPeaks
from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy, ProblemFacts
from cupilot.domain.value import Value, Vocabulary

NEAR_FLOOR = 0.95
"""Above this share of the floor's speed, at measured peaks, there is nothing left to pay for."""


class Zone(Vocabulary):
    """Limit of a problem on a device under a policy."""

    MEMORY = "memory"
    MIDDLE = "middle"
    COMPUTE = "compute"


class Bounds(Value):
    """Least times at one set of peaks."""

    floor_us: float
    """By memory, the best algorithms known, and an empty launch."""
    direct_us: float
    """By memory, the direct count of operations, and an empty launch: no bound where a faster algorithm is known."""


class Placement(Value):
    """A problem's place on a device's roofline."""

    intensity: float
    """Directly counted operations per compulsory byte."""
    ridge_scalar: float
    """Intensity at which the scalar units and memory take equally long."""
    ridge_tensor: float
    """The same for the matrix units; equals ``ridge_scalar`` where the policy or device has none."""
    zone: Zone
    memory_floor_us: float
    compute_floor_us: float
    """By the best algorithms known; in records from before they were counted, by the direct count."""
    floor_us: float
    """Least time at the device's measured peaks: the larger of the two, and of an empty launch."""
    direct_us: float | None = None
    """:attr:`Bounds.direct_us` at the measured peaks; None in older records."""
    limit_us: float | None = None
    """No correct kernel can take less: the floor at the higher of each measured and stated peak; None in older records,
    whose limit is ``floor_us``."""
    stated: Bounds | None = None
    """Bounds at the peaks that the maker states of the model, by which cards compare; None where they are not known."""

    @property
    def physical_us(self) -> float:
        """Time below which a kernel is not believed."""
        return self.floor_us if self.limit_us is None else self.limit_us

    def floor_share(self, kernel_us: float) -> float:
        """Return the floor's share of a kernel's time, at the stated peaks where they are known."""
        return (self.floor_us if self.stated is None else self.stated.floor_us) / kernel_us

    def direct_share(self, kernel_us: float) -> float | None:
        """Return the direct count's share of a kernel's time, at the stated peaks where they are known.

        None where it is the floor, or was not recorded. A faster algorithm makes it larger than 1.
        """
        floor, direct = self.floor_us, self.direct_us
        if self.stated is not None:
            floor, direct = self.stated.floor_us, self.stated.direct_us
        return None if direct is None or direct <= floor else direct / kernel_us


@dataclass(frozen=True)
class Work:
    """Operations and bytes of a problem."""

    flops: float
    """Operations in all, counted directly."""
    matmul_flops: float
    """Those that could run on matrix units."""
    least_matmul_flops: float
    """Part of them that the best algorithms known need."""
    compulsory_bytes: int
    policy: NumericsPolicy

    @classmethod
    def of(cls, facts: ProblemFacts) -> Work:
        """Return a problem's work; where the least was not counted, it is the direct count."""
        least = facts.matmul_flops if facts.least_matmul_flops is None else facts.least_matmul_flops
        return cls(facts.flops, facts.matmul_flops, least, facts.compulsory_bytes, facts.policy)

    def memory_seconds(self, peaks: Peaks) -> float:
        """Return seconds that moving the compulsory bytes takes."""
        return self.compulsory_bytes / peaks.bandwidth

    def compute_seconds(self, peaks: Peaks, matmul_flops: float) -> float:
        """Return seconds of arithmetic, with so many operations in products and convolutions."""
        pointwise = self.flops - self.matmul_flops
        return pointwise / peaks.scalar_flops + matmul_flops / peaks.matrix_flops(self.policy)

    def bounds(self, peaks: Peaks) -> Bounds:
        """Return the least times at these peaks."""
        others = (self.memory_seconds(peaks), peaks.launch_seconds)
        return Bounds(
            floor_us=max(self.compute_seconds(peaks, self.least_matmul_flops), *others) * 1e6,
            direct_us=max(self.compute_seconds(peaks, self.matmul_flops), *others) * 1e6,
        )


def place(facts: ProblemFacts, peaks: Peaks, stated: StatedPeaks | None = None) -> Placement:
    """Place a problem on a device's roofline, by its measured peaks and those that its maker states."""
    return place_work(Work.of(facts), peaks, stated)


def place_work(work: Work, peaks: Peaks, stated: StatedPeaks | None = None) -> Placement:
    """Place counted work."""
    intensity = work.flops / max(work.compulsory_bytes, 1)
    ridge_scalar = peaks.scalar_flops / peaks.bandwidth
    ridge_tensor = peaks.matrix_flops(work.policy) / peaks.bandwidth if work.matmul_flops else ridge_scalar
    bounds = work.bounds(peaks)
    by_maker = None if stated is None else stated.in_place_of(peaks)
    return Placement(
        intensity=intensity,
        ridge_scalar=ridge_scalar,
        ridge_tensor=ridge_tensor,
        zone=_zone(intensity, ridge_scalar, ridge_tensor),
        memory_floor_us=work.memory_seconds(peaks) * 1e6,
        compute_floor_us=work.compute_seconds(peaks, work.least_matmul_flops) * 1e6,
        floor_us=bounds.floor_us,
        direct_us=bounds.direct_us,
        limit_us=work.bounds(peaks if by_maker is None else peaks.best_of(by_maker)).floor_us,
        stated=None if by_maker is None else work.bounds(by_maker),
    )


def _zone(intensity: float, ridge_scalar: float, ridge_tensor: float) -> Zone:
    low, high = sorted((ridge_scalar, ridge_tensor))
    if intensity < low:
        return Zone.MEMORY
    if intensity < high:
        return Zone.MIDDLE
    return Zone.COMPUTE
