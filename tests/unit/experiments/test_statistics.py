"""Statistics against published values, and properties that any sample must have."""

from __future__ import annotations

from math import isclose
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupilot.domain.experiments.statistics import (
    MIN_SAMPLES,
    hodges_lehmann,
    hodges_lehmann_interval,
    holm,
    median_interval,
    ratio_interval,
    share_interval,
    sign_test,
    signed_rank_test,
)

BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
DEPRESSION = [one - other for one, other in zip(BEFORE, AFTER, strict=True)]
"""Hamilton depression scale factor IV: Hollander, Wolfe and Chicken, example 3.1."""

values = st.lists(st.floats(-100, 100, allow_nan=False).map(lambda one: round(one, 3)), min_size=1, max_size=30)


def test_signed_rank_test_and_interval_of_the_textbook() -> None:
    assert signed_rank_test(DEPRESSION) == pytest.approx(0.0390625)  # T+ = 40 of n = 9
    found = hodges_lehmann_interval(DEPRESSION)
    assert found is not None
    assert (found.low, found.median, found.high) == pytest.approx((0.010, 0.460, 0.786), abs=5e-4)


@pytest.mark.parametrize(
    ("differences", "probability"),
    [
        ([], 1.0),
        ([0.0, 0.0], 1.0),
        ([1.0], 1.0),
        ([1, 2, 3, 4, 5, 6], 2 / 64),
        ([1] * 6, 2 / 64),
        ([1, -1], 1),
    ],
)
def test_signed_rank_test_of_small_samples(differences: list[float], probability: float) -> None:
    assert signed_rank_test(differences) == pytest.approx(probability)


def test_the_normal_approximation_continues_the_exact_distribution() -> None:
    sample = [(-1.0) ** number * number + 4 for number in range(1, 51)]
    exact, approximate = signed_rank_test(sample), signed_rank_test([*sample, 0.5])
    assert isclose(exact, approximate, abs_tol=0.02)


@pytest.mark.parametrize(
    ("wins", "losses", "probability"), [(0, 0, 1.0), (8, 2, 0.109375), (6, 0, 0.03125), (5, 0, 0.0625), (3, 3, 1.0)]
)
def test_sign_test(wins: int, losses: int, probability: float) -> None:
    assert sign_test(wins, losses) == sign_test(losses, wins) == pytest.approx(probability)


def test_median_interval_takes_the_order_statistics_of_the_binomial_table() -> None:
    bounds = {6: (1, 6), 8: (1, 8), 9: (2, 8), 10: (2, 9), 15: (4, 12), 20: (6, 15), 30: (10, 21)}
    for size, (low, high) in bounds.items():
        found = median_interval(range(1, size + 1))
        assert found is not None
        assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize("size", range(MIN_SAMPLES))
def test_nothing_is_claimed_from_too_few(size: int) -> None:
    sample = [float(number) for number in range(1, size + 1)]
    assert median_interval(sample) is None
    assert hodges_lehmann_interval(sample) is None
    assert ratio_interval([(1, 2)] * size) is None


@given(values)
@settings(max_examples=60, deadline=None)
def test_intervals_hold_their_estimates_and_mirror_their_samples(sample: list[float]) -> None:
    mirrored = [-item for item in sample]
    assert signed_rank_test(sample) == pytest.approx(signed_rank_test(mirrored))
    assert hodges_lehmann(sample) == pytest.approx(-hodges_lehmann(mirrored))
    for interval in (median_interval, hodges_lehmann_interval):
        found, mirror = interval(sample), interval(mirrored)
        assert (found is None) == (len(sample) < MIN_SAMPLES)
        if found is not None and mirror is not None:
            assert min(sample) <= found.low <= found.median <= found.high <= max(sample)
            assert (found.low, found.high) == pytest.approx((-mirror.high, -mirror.low))


def test_shares_are_drawn_by_whole_clusters() -> None:
    alike = ratio_interval([(5, 10)] * 8)
    torn = ratio_interval([(10, 10), (0, 10)] * 4)
    assert alike is not None
    assert torn is not None
    assert (alike.low, alike.median, alike.high) == (0.5, 0.5, 0.5)
    assert torn.median == 0.5
    assert torn.low <= 0.25
    assert torn.high >= 0.75
    assert torn == ratio_interval([(10, 10), (0, 10)] * 4)
    assert ratio_interval([(0, 0)] * 8) is None


@given(st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=60, deadline=None)
def test_holm_keeps_the_order_and_only_raises(probabilities: list[float]) -> None:
    adjusted = holm(probabilities)
    assert all(one <= other <= 1 for one, other in zip(probabilities, adjusted, strict=True))
    ranks = sorted(range(len(probabilities)), key=lambda place: probabilities[place])
    assert [adjusted[place] for place in ranks] == sorted(adjusted)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_score_interval_of_newcombes_table(successes: int, trials: int, low: float, high: float) -> None:
    """Statistics in Medicine 17 (1998), 857-872, table I, method 3."""
    found = share_interval(successes, trials)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_holm_of_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_median_is_the_estimate() -> None:
    sample = [3.0, 1.0, 2.0, 9.0, 4.0, 5.0, 6.0]
    found = median_interval(sample)
    assert found is not None
    assert found.median == median(sample)
