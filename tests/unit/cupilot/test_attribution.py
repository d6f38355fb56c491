"""The interval of a technique's credit."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.attribution import credit_factor
from cupilot.domain.evaluation import Interval


def around(median: float, low: float, high: float) -> Interval:
    return Interval(low=median * low, median=median, high=median * high)


intervals = st.builds(around, st.floats(0.01, 100), st.floats(0.5, 1.0), st.floats(1.0, 2.0))


def test_equal_errors_of_both_add_as_squares() -> None:
    factor = credit_factor(around(3.0, exp(-0.03), exp(0.03)), around(2.0, exp(-0.04), exp(0.04)))
    assert factor.median == pytest.approx(1.5)
    assert log(factor.high / factor.median) == pytest.approx(0.05)
    assert log(factor.median / factor.low) == pytest.approx(0.05)


@given(intervals, intervals)
def test_the_credit_is_the_other_ways_loss(winner: Interval, without: Interval) -> None:
    factor, inverse = credit_factor(winner, without), credit_factor(without, winner)
    assert factor.low == pytest.approx(1 / inverse.high)
    assert factor.high == pytest.approx(1 / inverse.low)
    assert factor.low <= winner.low / without.median * (1 + 1e-9)
