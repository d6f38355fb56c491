"""Fitness: how good a measured candidate is, as one number that selection compares.

``fitness = ln(speed) + weight * utilisation``, cuPilot's "performance plus hardware utilisation" (Algorithm 1,
line 5). The speed is a lower confidence bound, so that a lucky measurement wins nothing. The logarithm makes 2x over 1x
worth as much as 4x over 2x; the utilisation, of the zone's own resource, tells two equally fast kernels apart by how
much of the machine each already uses. It comes from hardware counters alone: what is calculated from time says nothing
that the time does not. Only kernels that count have a fitness.
"""

from __future__ import annotations

from math import log

from cupilot.domain.evaluation import Evaluation, Preparation, Profile, ProfileSource
from cupilot.domain.evolution.population import Member
from cupilot.domain.problem import Target
from cupilot.domain.roofline import Placement, Zone
from cupilot.domain.strategy import Strategy

MEMORY_METRIC = "dram_throughput_pct"
COMPUTE_METRIC = "sm_throughput_pct"

_ZONE_METRICS = {
    Zone.MEMORY: (MEMORY_METRIC,),
    Zone.MIDDLE: (MEMORY_METRIC, COMPUTE_METRIC),
    Zone.COMPUTE: (COMPUTE_METRIC,),
}


def utilisation(profile: Profile | None, zone: Zone) -> float:
    """Return the share, 0 to 1, of the zone's own resource that counters show in use, the busier of both in the middle
    zone; 0 where nothing was counted.
    """
    if profile is None or not has_counters(profile):
        return 0.0
    return max(profile.utilisation(metric) for metric in _ZONE_METRICS[zone])


def has_counters(profile: Profile | None) -> bool:
    """Return whether the profile comes from hardware counters."""
    return profile is not None and profile.source is ProfileSource.MEASURED


def speed_bounds(evaluation: Evaluation, preparation: Preparation | None = None) -> tuple[float, float] | None:
    """Return bounds of how many times as fast as PyTorch eager a kernel is; None unless its verdict counts.

    A GPU is leased to one measurement at a time: there kernels of a job are compared by their own time against one
    baseline, that of the preparation, since eager's own scatter would else decide between equal kernels. A CPU is
    shared: there, and on another model of device, the baseline that was measured side by side takes the load out.
    """
    comparison = evaluation.comparison()
    if comparison is None or not evaluation.verdict.counts:
        return None
    if preparation is not None and _same_gpu(evaluation, preparation):
        low, high = comparison.kernel_us_bounds
        return preparation.baseline_us.median / high, preparation.baseline_us.median / low
    return comparison.speedup_bounds


def speedup_low(evaluation: Evaluation) -> float | None:
    """Return the lower bound of the speedup over eager, measured side by side; None unless the verdict counts."""
    found = speed_bounds(evaluation)
    return None if found is None else found[0]


def _same_gpu(evaluation: Evaluation, preparation: Preparation) -> bool:
    if evaluation.environment is None or evaluation.environment.device.target is not Target.CUDA:
        return False
    return evaluation.environment.device.name == preparation.environment.device.name


def fitness(
    evaluation: Evaluation, placement: Placement, utilisation_weight: float, preparation: Preparation | None = None
) -> float | None:
    """Return the fitness of a measured kernel; None unless its verdict counts."""
    bare = _bare(evaluation, preparation)
    return None if bare is None else bare + utilisation_weight * utilisation(evaluation.profile, placement.zone)


def _bare(evaluation: Evaluation, preparation: Preparation | None) -> float | None:
    bounds = speed_bounds(evaluation, preparation)
    return None if bounds is None else log(max(bounds[0], MIN_SPEED))


MIN_SPEED = 1e-9
"""Bounds of a few wildly scattered pairs may reach 0, of which there is no logarithm."""


def floor_share(evaluation: Evaluation, placement: Placement) -> float | None:
    """Return floor time over kernel time: 1 for a kernel as fast as physics allows; None unless the verdict counts."""
    comparison = evaluation.comparison()
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
    preparation: Preparation | None = None,
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
        fitness=fitness(evaluation, placement, utilisation_weight, preparation),
        bare=_bare(evaluation, preparation),
        counted=has_counters(evaluation.profile),
        floor_share=floor_share(evaluation, placement),
    )
