"""Distribution-free statistics of small samples: exact where the sample is small, no claim where it is tiny.

Speedups of different problems have no common distribution, and an arm has a handful of jobs; so everything here rests
on ranks or signs. Sources:

- order-statistic interval of a median, sign test: Conover, *Practical Nonparametric Statistics*, 3rd ed., 3.2 and 3.4;
- Wilcoxon's signed-rank test, the Hodges-Lehmann estimate and Tukey's interval around it: Hollander, Wolfe and Chicken,
  *Nonparametric Statistical Methods*, 3rd ed., 3.1 to 3.3 (its example 3.1 is a test);
- percentile bootstrap over whole clusters: Davison and Hinkley, *Bootstrap Methods and their Application*, 3.8;
- Holm's adjustment: Scandinavian Journal of Statistics 6 (1979), 65-70.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import comb, erfc, sqrt
from random import Random
from statistics import median

from cupilot.domain.evaluation import Interval

CONFIDENCE = 0.95
MIN_SAMPLES = 6
"""Below six, no rank interval reaches 95 %: six on one side have a two-sided chance of 2/2^6 = 3.1 %, five 6.3 %."""
EXACT_UP_TO = 50
"""Pairs up to which the signed-rank distribution is counted out; beyond, its normal approximation."""
RESAMPLES = 2_000


def median_interval(values: Sequence[float]) -> Interval | None:
    """Return the median with its order-statistic interval of at least 95 %; None below :data:`MIN_SAMPLES` values."""
    ordered = sorted(values)
    size = len(ordered)
    below, tail = 0, 1 / (1 << size)
    while tail <= (1 - CONFIDENCE) / 2:
        below += 1
        tail += comb(size, below) / (1 << size)
    if size < MIN_SAMPLES or below == 0:
        return None
    return Interval(low=ordered[below - 1], median=median(ordered), high=ordered[size - below])


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided probability of so uneven a split if either side were as likely.

    Ties are left out. 1 without pairs.
    """
    size = wins + losses
    tail = sum(comb(size, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << size))


def signed_rank_test(differences: Sequence[float]) -> float:
    """Return Wilcoxon's two-sided probability.

    Zeros are left out, ties share their mean rank. 1 without differences.
    """
    kept = [difference for difference in differences if difference != 0]
    if not kept:
        return 1.0
    ranks = _doubled_ranks([abs(difference) for difference in kept])
    positive = sum(rank for rank, difference in zip(ranks, kept, strict=True) if difference > 0)
    if len(kept) > EXACT_UP_TO:
        spread = sqrt(sum(rank * rank for rank in ranks))
        return erfc(abs(2 * positive - sum(ranks)) / spread / sqrt(2))
    ways = _ways(ranks)
    lower, upper = sum(ways[: positive + 1]), sum(ways[positive:])
    return min(1.0, 2 * min(lower, upper) / (1 << len(ranks)))


def hodges_lehmann(differences: Sequence[float]) -> float:
    """Return the median of all pairwise means: where the differences are centred, if they are symmetric."""
    return median(_walsh(differences))


def hodges_lehmann_interval(differences: Sequence[float]) -> Interval | None:
    """Return the Hodges-Lehmann estimate with Tukey's interval of at least 95 %.

    None below :data:`MIN_SAMPLES` differences.
    """
    size = len(differences)
    if size < MIN_SAMPLES:
        return None
    means = _walsh(differences)
    outside = _outside(size)
    return Interval(low=means[outside], median=median(means), high=means[len(means) - 1 - outside])


def ratio_interval(parts: Sequence[tuple[int, int]], seed: int = 0) -> Interval | None:
    """Return a share, as ``sum of first / sum of second`` over clusters, with its percentile bootstrap interval.

    Whole clusters (jobs) are drawn, because the candidates of a job are alike. None below :data:`MIN_SAMPLES` clusters
    or without any observation. The same parts and seed give the same interval.
    """
    total = sum(second for _, second in parts)
    if len(parts) < MIN_SAMPLES or total == 0:
        return None
    rng = Random(seed)
    shares = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(parts, k=len(parts))
        size = sum(second for _, second in drawn)
        if size:
            shares.append(sum(first for first, _ in drawn) / size)
    shares.sort()
    cut = int(len(shares) * (1 - CONFIDENCE) / 2)
    share = sum(first for first, _ in parts) / total
    return Interval(low=min(shares[cut], share), median=share, high=max(shares[-1 - cut], share))


def share_interval(successes: int, trials: int) -> Interval:
    """Return a share of independent trials with Wilson's score interval (JASA 22 (1927), 209-212), which holds for few
    too.
    """
    z = 1.959964
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Interval(low=min(max(centre - half, 0.0), share), median=share, high=max(min(centre + half, 1.0), share))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities adjusted for there being several of them, in the order given."""
    order = sorted(range(len(probabilities)), key=lambda place: probabilities[place])
    adjusted = [1.0] * len(probabilities)
    largest = 0.0
    for step, place in enumerate(order):
        largest = max(largest, min(1.0, probabilities[place] * (len(order) - step)))
        adjusted[place] = largest
    return adjusted


def _doubled_ranks(magnitudes: Sequence[float]) -> list[int]:
    """Return twice the mean rank of each, so that shared ranks stay whole numbers."""
    ordered = sorted(magnitudes)
    first = {value: place for place, value in reversed(list(enumerate(ordered)))}
    return [2 * first[value] + 1 + ordered.count(value) for value in magnitudes]


def _ways(ranks: Sequence[int]) -> list[int]:
    """Count in how many of the 2^n choices of signs the positive (doubled) ranks add up to each sum."""
    ways = [1] + [0] * sum(ranks)
    reached = 0
    for rank in ranks:
        reached += rank
        for total in range(reached, rank - 1, -1):
            ways[total] += ways[total - rank]
    return ways


def _walsh(differences: Sequence[float]) -> list[float]:
    return sorted((first + second) / 2 for first, second in combinations_with_replacement(differences, 2))


def _outside(size: int) -> int:
    """Return how many of the pairwise means lie outside the interval on each side."""
    if size > EXACT_UP_TO:
        centre, spread = size * (size + 1) / 4, sqrt(size * (size + 1) * (2 * size + 1) / 24)
        return max(int(centre - 1.959964 * spread) - 1, 0)
    ways = _ways([2 * rank for rank in range(1, size + 1)])[::2]
    outside, tail = 0, ways[0]
    while tail / (1 << size) <= (1 - CONFIDENCE) / 2:
        outside += 1
        tail += ways[outside]
    return max(outside - 1, 0)
