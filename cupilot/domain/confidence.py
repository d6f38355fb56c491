"""Bounds of what a few pairs of blocks show: when an interval is called one of 95 %, and what to go by before."""

from __future__ import annotations

from math import exp, inf, log

DECIDED_PAIRS = 6
"""Pairs of blocks from which on an interval is called one of 95 %: below, ranks of the samples bound nothing."""

_RANGE_FACTORS = {2: 6.353, 3: 1.304, 4: 0.717, 5: 0.507}
"""Half width of a 95 % interval in ranges of a normal sample of so many (Lord, "The Use of Range in Place of Standard
Deviation in the t-Test", Biometrika 34, 1947)."""


def bounds(low: float, median: float, high: float, pairs: int) -> tuple[float, float]:
    """Return bounds at 95 % of a quantity that was measured in so many pairs, between ``low`` and ``high``.

    Of few pairs by their range, on a logarithmic scale; of one pair, a factor of two.
    """
    if pairs >= DECIDED_PAIRS:
        return low, high
    if low <= 0.0:
        return 0.0, inf
    spread = _RANGE_FACTORS[pairs] * log(high / low) if pairs in _RANGE_FACTORS else log(2.0)
    return median * exp(-spread), median * exp(min(spread, 700.0))
