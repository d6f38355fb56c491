"""Fitness: how good a measured candidate is, as one number that selection compares.

``fitness = ln(speedup) + weight * utilisation``, cuPilot's "performance plus hardware utilisation" (Algorithm 1,
line 5). The logarithm makes 2x over 1x worth as much as 4x over 2x; the utilisation, of the zone's own resource,
tells two equally fast kernels apart by how much of the machine each already uses. Only kernels that count have one.
"""

from __future__ import annotations

from math import log

from cupilot.domain.evaluation import Baseline, Evaluation, Profile
from cupilot.domain.evolution.population import Member
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy

MEMORY_METRIC = "memory_throughput_pct"
COMPUTE_METRIC = "compute_throughput_pct"

_ZONE_METRICS = {
    Zone.MEMORY: (MEMORY_METRIC,),
    Zone.MIDDLE: (MEMORY_METRIC, COMPUTE_METRIC),
    Zone.COMPUTE: (COMPUTE_METRIC,),
}


def utilisation(profile: Profile | None, zone: Zone) -> float:
    """Return the share, 0 to 1, of the zone's own resource that is in use; the busier of both in the middle zone."""
    if profile is None:
        return 0.0
    return max(profile.utilisation(metric) for metric in _ZONE_METRICS[zone])


def fitness(evaluation: Evaluation, placement: Placement, utilisation_weight: float) -> float | None:
    """Return the fitness of a measured kernel; None unless its verdict counts."""
    speedup = evaluation.speedup
    if speedup is None:
        return None
    return log(speedup) + utilisation_weight * utilisation(evaluation.profile, placement.zone)


def floor_share(evaluation: Evaluation, placement: Placement) -> float | None:
    """Return floor time over kernel time: 1 for a kernel as fast as physics allows; None unless the verdict counts."""
    comparison = evaluation.comparison(Baseline.EAGER)
    if comparison is None or not evaluation.verdict.counts:
        return None
    return placement.floor_us / comparison.kernel_us.median


def member(
    *,
    candidate: str,
    ordinal: int,
    generation: int,
    strategy: Strategy,
    evaluation: Evaluation,
    placement: Placement,
    utilisation_weight: float,
) -> Member:
    """Return a measured candidate as selection sees it."""
    return Member(
        candidate=candidate,
        ordinal=ordinal,
        generation=generation,
        strategy=strategy,
        kernel_hash=evaluation.kernel_hash,
        verdict=evaluation.verdict,
        speedup=evaluation.speedup,
        utilisation=utilisation(evaluation.profile, placement.zone),
        fitness=fitness(evaluation, placement, utilisation_weight),
        floor_share=floor_share(evaluation, placement),
    )
