"""Summarise speedups as the field counts them: fast_p, counts, quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from statistics import geometric_mean

from cupilot.schemas import SpeedSummary

FAST = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""KernelBench's thresholds (arXiv 2502.10517)."""
QUANTILES = (10, 25, 50, 75, 90)


def speed_summary(speeds: Sequence[float], finished: int) -> SpeedSummary | None:
    """Return the summary of the solved jobs' speedups among all that finished; None where none has."""
    if not finished:
        return None
    return SpeedSummary(
        fast={f"{limit:g}": sum(speed > limit for speed in speeds) / finished for limit in FAST},
        over_2x=sum(speed > 2 for speed in speeds),
        geometric_mean=geometric_mean(speeds) if speeds else None,
        quantiles={str(percent): _quantile(sorted(speeds), percent / 100) for percent in QUANTILES} if speeds else {},
    )


def fast_words(summary: SpeedSummary) -> str:
    """Return fast_p in a line, e.g. ``fast_1 83 %, fast_2 33 %``."""
    return ", ".join(f"fast_{limit} {share:.0%}" for limit, share in summary.fast.items())


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate between the neighbours, as numpy does by default."""
    place = share * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
