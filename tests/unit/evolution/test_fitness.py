"""Fitness: log speedup plus weighted utilisation, for kernels that count only."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.evaluation import FailureKind, Verdict
from cupilot.domain.evolution.fitness import fitness, floor_share, member, utilisation
from cupilot.domain.roofline import Zone
from tests.unit.evolution.populations import failed, measured, placement, strategy


@pytest.mark.parametrize(("zone", "expected"), [(Zone.MEMORY, 0.8), (Zone.COMPUTE, 0.3), (Zone.MIDDLE, 0.8)])
def test_utilisation_is_that_of_the_zones_own_resource(zone: Zone, expected: float) -> None:
    assert utilisation(measured(2.0, memory=80, compute=30).profile, zone) == pytest.approx(expected)


def test_the_middle_zone_counts_the_busier_resource() -> None:
    assert utilisation(measured(2.0, memory=20, compute=90).profile, Zone.MIDDLE) == pytest.approx(0.9)


def test_an_unknown_profile_uses_nothing() -> None:
    assert utilisation(None, Zone.MEMORY) == 0.0


def test_fitness_adds_weighted_utilisation_to_log_speedup() -> None:
    assert fitness(measured(2.0, memory=80), placement(), 0.25) == pytest.approx(log(2.0) + 0.2)


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
    assert one.fitness == pytest.approx(log(3.0) + 0.2)
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
