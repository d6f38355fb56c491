"""Fitness: log speedup plus weighted utilisation, for kernels that count only."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.champions import champions
from cupilot.domain.evaluation import Evaluation, FailureKind, Interval, Preparation, ProfileSource, Verdict
from cupilot.domain.evolution.fitness import fitness, floor_share, member, speed_bounds, utilisation
from cupilot.domain.evolution.selection import ranked
from cupilot.domain.roofline import Zone
from tests.unit.evolution.populations import failed, measured, placement, strategy


@pytest.mark.parametrize(("zone", "expected"), [(Zone.MEMORY, 0.8), (Zone.COMPUTE, 0.3), (Zone.MIDDLE, 0.8)])
def test_utilisation_is_that_of_the_zones_own_resource(zone: Zone, expected: float) -> None:
    assert utilisation(measured(2.0, memory=80, compute=30).profile, zone) == pytest.approx(expected)


def test_the_middle_zone_counts_the_busier_resource() -> None:
    assert utilisation(measured(2.0, memory=20, compute=90).profile, Zone.MIDDLE) == pytest.approx(0.9)


def test_an_unknown_profile_uses_nothing() -> None:
    assert utilisation(None, Zone.MEMORY) == 0.0


def test_fitness_adds_weighted_utilisation_to_the_log_of_the_lower_bound() -> None:
    assert fitness(measured(2.0, memory=80), placement(), 0.25) == pytest.approx(log(2.0 * 0.99) + 0.2)


@given(st.floats(0.01, 100), st.floats(1.001, 10), st.floats(0, 100), st.floats(0, 10))
def test_a_faster_kernel_of_equal_utilisation_is_fitter(slow: float, by: float, memory: float, weight: float) -> None:
    values = [fitness(measured(speedup, memory=memory), placement(), weight) for speedup in (slow, slow * by)]
    assert all(value is not None for value in values)
    assert all(low < high for low, high in pairwise(values))  # type: ignore[operator]


@given(st.floats(0.01, 100), st.floats(1.5, 10))
def test_equal_ratios_of_speedup_are_worth_the_same(start: float, ratio: float) -> None:
    one, two, three = (fitness(measured(start * ratio**step), placement(), 0.25) or 0.0 for step in range(3))
    assert two - one == pytest.approx(three - two)


@pytest.mark.parametrize("verdict", [Verdict.REJECTED, Verdict.CORRECT, Verdict.PLAUSIBLE, Verdict.QUARANTINED])
def test_what_does_not_count_has_no_fitness(verdict: Verdict) -> None:
    evaluation = measured(50.0).model_copy(
        update={"verdict": verdict, "failure": failed(FailureKind.BELOW_FLOOR).failure}
    )
    assert fitness(evaluation, placement(), 0.25) is None
    assert floor_share(evaluation, placement()) is None


def test_floor_share_is_floor_time_over_kernel_time() -> None:
    assert floor_share(measured(2.0, kernel_us=10.0), placement(floor_us=5.0)) == pytest.approx(0.5)


def test_a_member_carries_what_was_measured() -> None:
    one = member(
        candidate="id",
        ordinal=7,
        generation=2,
        strategy=strategy("tiling"),
        evaluation=measured(3.0, memory=40),
        placement=placement(),
        utilisation_weight=0.5,
    )
    assert (one.candidate, one.ordinal, one.generation, one.kernel_hash) == ("id", 7, 2, "kernel")
    assert one.speedup == pytest.approx(3.0)
    assert one.utilisation == pytest.approx(0.4)
    assert one.fitness == pytest.approx(log(3.0 * 0.99) + 0.2)
    assert one.floor_share == pytest.approx(0.5)


def test_a_failed_member_has_neither_speedup_nor_fitness() -> None:
    one = member(
        candidate="id",
        ordinal=0,
        generation=0,
        strategy=strategy(),
        evaluation=failed(FailureKind.CRASH),
        placement=placement(),
        utilisation_weight=0.5,
    )
    assert (one.speedup, one.fitness, one.floor_share, one.verdict) == (None, None, None, Verdict.REJECTED)


def with_pairs(evaluation: Evaluation, pairs: int, low: float, high: float) -> Evaluation:
    """The same measured in so many pairs, with this range of the speedup."""
    [comparison] = evaluation.comparisons
    speedup = Interval(low=low, median=(low * high) ** 0.5, high=high)
    return evaluation.model_copy(
        update={"comparisons": (comparison.model_copy(update={"pairs": pairs, "speedup": speedup}),)}
    )


def test_a_wide_range_of_few_pairs_loses_to_a_decided_measurement() -> None:
    lucky = with_pairs(measured(2.0), 2, 1.8, 2.25)
    calm = with_pairs(measured(1.3), 6, 1.28, 1.32)
    assert not lucky.comparisons[0].decided
    assert calm.comparisons[0].decided
    values = [fitness(evaluation, placement(), 0.0) or 0.0 for evaluation in (lucky, calm)]
    assert values[0] < values[1]
    assert calm.comparisons[0].speedup_bounds == (1.28, 1.32)


@given(st.integers(2, 5), st.floats(1.001, 3.0))
def test_bounds_of_few_pairs_contain_their_median_and_narrow_with_each_pair(pairs: int, spread: float) -> None:
    fewer, more = (
        with_pairs(measured(2.0), count, 2.0 / spread, 2.0 * spread).comparisons[0] for count in (pairs, pairs + 1)
    )
    low, high = fewer.speedup_bounds
    assert low < 2.0 < high
    if pairs < 5:
        assert low < more.speedup_bounds[0] < 2.0 < more.speedup_bounds[1] < high


def test_one_pair_bounds_a_speedup_to_a_factor_of_two() -> None:
    low, high = with_pairs(measured(2.0), 1, 2.0, 2.0).comparisons[0].speedup_bounds
    assert (low, high) == (pytest.approx(1.0), pytest.approx(4.0))


def test_utilisation_that_nobody_counted_is_none() -> None:
    evaluation = measured(2.0, memory=80)
    assert evaluation.profile is not None
    inferred = evaluation.profile.model_copy(update={"source": ProfileSource.INFERRED})
    assert utilisation(inferred, Zone.MEMORY) == 0.0


def test_members_without_counters_are_ranked_by_speed_alone() -> None:
    common = {"generation": 0, "placement": placement(), "utilisation_weight": 1.0}
    slow = measured(2.0, memory=90)
    fast = measured(2.1, memory=0)
    assert fast.profile is not None
    blind = fast.model_copy(update={"profile": fast.profile.model_copy(update={"source": ProfileSource.INFERRED})})

    def members(first: Evaluation, second: Evaluation) -> list[str]:
        population = [
            member(candidate=name, ordinal=place, strategy=strategy(), evaluation=item, **common)  # type: ignore[arg-type]
            for place, (name, item) in enumerate((("slow", first), ("fast", second)))
        ]
        return [item.candidate for item in ranked(population)]

    assert members(slow, blind) == ["fast", "slow"]
    assert members(slow, fast) == ["slow", "fast"]


def test_kernels_on_a_gpu_are_compared_by_their_own_time_against_one_baseline() -> None:
    known = Preparation.model_validate(
        champions()[0].preparation.model_dump() | {"baseline_us": {"low": 29.0, "median": 30.0, "high": 31.0}}
    )
    here = known.environment
    noisy = [measured(speedup, kernel_us=10.0).model_copy(update={"environment": here}) for speedup in (2.89, 2.65)]
    first, second = (speed_bounds(evaluation, known) for evaluation in noisy)
    assert first == second == (pytest.approx(30.0 / 10.1), pytest.approx(30.0 / 9.9))
    elsewhere = here.device.model_copy(update={"name": "Another card"})
    moved = noisy[0].model_copy(update={"environment": here.model_copy(update={"device": elsewhere})})
    assert speed_bounds(moved, known) == moved.comparisons[0].speedup_bounds
