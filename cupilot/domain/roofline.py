"""Place a problem on the roofline: its zone between two ridge points, and the bound that no kernel can beat.

Model: Williams, Waterman, Patterson, "Roofline" (CACM 2009); the two ridge points and three zones are cuPilot's
(arXiv 2512.16465). Takes measured peaks; measures nothing itself.
"""

from __future__ import annotations

from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy, ProblemFacts
from cupilot.domain.value import Value, Vocabulary

NEAR_FLOOR = 0.95
"""Above this share of the floor's speed there is nothing left to pay for."""


class Zone(Vocabulary):
    """Limit of a problem on a device under a policy."""

    MEMORY = "memory"
    MIDDLE = "middle"
    COMPUTE = "compute"


class Placement(Value):
    """A problem's place on a device's roofline."""

    intensity: float
    """Operations per compulsory byte."""
    ridge_scalar: float
    """Intensity at which the scalar units and memory take equally long."""
    ridge_tensor: float
    """The same for the matrix units; equals ``ridge_scalar`` where the policy or device has none."""
    zone: Zone
    memory_floor_us: float
    compute_floor_us: float
    floor_us: float
    """No correct kernel can take less: the larger of the two, and of an empty launch."""


def place(facts: ProblemFacts, peaks: Peaks) -> Placement:
    """Place a problem on a device's roofline."""
    return place_counts(facts.flops, facts.matmul_flops, facts.compulsory_bytes, facts.policy, peaks)


def place_counts(
    flops: float, matmul_flops: float, compulsory_bytes: int, policy: NumericsPolicy, peaks: Peaks
) -> Placement:
    """Place counted work: ``flops`` operations in all, of which ``matmul_flops`` could run on matrix units."""
    intensity = flops / max(compulsory_bytes, 1)
    ridge_scalar = peaks.scalar_flops / peaks.bandwidth
    matrix_rate = peaks.matrix_flops(policy)
    ridge_tensor = matrix_rate / peaks.bandwidth if matmul_flops else ridge_scalar
    memory_floor = compulsory_bytes / peaks.bandwidth
    compute_floor = (flops - matmul_flops) / peaks.scalar_flops + matmul_flops / matrix_rate
    return Placement(
        intensity=intensity,
        ridge_scalar=ridge_scalar,
        ridge_tensor=ridge_tensor,
        zone=_zone(intensity, ridge_scalar, ridge_tensor),
        memory_floor_us=memory_floor * 1e6,
        compute_floor_us=compute_floor * 1e6,
        floor_us=max(memory_floor, compute_floor, peaks.launch_seconds) * 1e6,
    )


def _zone(intensity: float, ridge_scalar: float, ridge_tensor: float) -> Zone:
    low, high = sorted((ridge_scalar, ridge_tensor))
    if intensity < low:
        return Zone.MEMORY
    if intensity < high:
        return Zone.MIDDLE
    return Zone.COMPUTE
