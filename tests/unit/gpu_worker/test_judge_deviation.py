"""Errors in units of the output, and words for what is wrong."""

from __future__ import annotations

import math

import pytest
import torch

from cupilot.domain.evaluation import FailureKind
from cupilot.domain.problem import Role
from gpu_worker.judge.deviation import (
    VANISHING,
    Expected,
    Selection,
    Unit,
    deviation,
    disagreement,
    flat,
    moments,
    unit_of,
    unreadable,
    wrong_mask,
)
from gpu_worker.judge.diagnosis import wrong_output
from tests.unit.gpu_worker.records import spec


def expected(values: torch.Tensor) -> Expected:
    return Expected(values, unit_of(values))


def test_the_unit_is_the_spread_and_not_the_magnitude() -> None:
    values = 1000.0 + torch.linspace(-1, 1, 1001, dtype=torch.float64)
    assert unit_of(values).spread == pytest.approx(float(values.std(correction=0)))
    assert deviation(expected(values), values + 0.1) == pytest.approx(0.1 / float(values.std()), rel=0.01)


def test_far_elements_are_measured_by_their_distance() -> None:
    values = torch.zeros(100_000, dtype=torch.float64)
    values[::2] = 1.0
    values[7] = 1e4
    wrong = values.clone()
    wrong[7] += 1.0
    assert deviation(expected(values), wrong) == pytest.approx(1e-4, rel=0.01)


def test_few_elements_are_measured_by_their_magnitude() -> None:
    assert unit_of(torch.tensor(4.0)) == Unit(4.0)
    assert unit_of(torch.tensor([3.0, -3.0])) == Unit(3.0)
    assert unit_of(torch.zeros(5)) == Unit(1.0)
    assert unit_of(torch.full((9,), 1e-160, dtype=torch.float64)) == Unit(VANISHING)  # zero in float32
    assert unit_of(torch.tensor([1, 2, 3])) == Unit(1.0)


def test_constant_outputs_are_flat() -> None:
    assert flat(torch.full((100,), 0.25))
    assert flat(torch.zeros(100, dtype=torch.int64))
    assert not flat(torch.linspace(0, 1, 100))
    assert not flat(torch.tensor([2.0]))


def test_not_a_number_and_infinity_must_be_in_their_places() -> None:
    values = torch.linspace(0, 1, 64, dtype=torch.float64)
    assert deviation(expected(values), values.masked_fill(values > 0.9, math.nan)) == math.inf
    special = values.clone()
    special[3], special[4], special[5] = math.nan, math.inf, -math.inf
    assert deviation(expected(special), special.float()) < 1e-6
    moved = special.clone()
    moved[4] = -math.inf
    assert deviation(expected(special), moved) == math.inf
    moved[4] = 1.0
    assert deviation(expected(special), moved) == math.inf


def test_integers_are_exact() -> None:
    values = torch.arange(10)
    assert deviation(expected(values), values) == 0.0
    assert deviation(expected(values), values + (values == 3)) == math.inf


def test_a_byte_that_is_neither_zero_nor_one_is_no_truth_value() -> None:
    values = torch.ones(100, dtype=torch.bool)
    assert deviation(expected(values), values.clone()) == 0.0
    got = values.view(torch.uint8).clone()
    got[7] = 0xA3
    assert deviation(expected(values), got.view(torch.bool)) == math.inf
    assert wrong_mask(expected(values), got.view(torch.bool), 0.0).nonzero().flatten().tolist() == [7]
    assert "expected 1, got 163" in describe(values, got.view(torch.bool))[1]


def test_any_index_of_an_equal_value_is_right() -> None:
    values = torch.tensor([[1.0, 5.0, 5.0], [2.0, 1.0, 0.0]], dtype=torch.float64)
    wanted = Expected(torch.tensor([1, 0]), Unit(), Selection(values, 1, keepdim=False))
    assert deviation(wanted, torch.tensor([2, 0])) == 0.0
    assert deviation(wanted, torch.tensor([0, 0])) == math.inf
    assert deviation(wanted, torch.tensor([3, 0])) == math.inf
    assert deviation(wanted, torch.tensor([-1, 0])) == math.inf


def test_indices_of_equal_values_stand_in_any_order_and_once_each() -> None:
    values = torch.tensor([[3.0, 5.0, 5.0, 5.0]], dtype=torch.float64)
    wanted = Expected(torch.tensor([[1, 2]]), Unit(), Selection(values, -1, keepdim=True, distinct=True))
    for got, error in (([[3, 1]], 0.0), ([[2, 2]], math.inf), ([[0, 1]], math.inf), ([[4, 1]], math.inf)):
        assert deviation(wanted, torch.tensor(got)) == error


def describe(values: torch.Tensor, got: torch.Tensor, unwritten: torch.Tensor | None = None) -> tuple[FailureKind, str]:
    target = spec("out", tuple(values.shape), Role.OUTPUT)
    nothing = torch.zeros(values.numel(), dtype=torch.bool)
    wanted = expected(values)
    assert bool(wrong_mask(wanted, got, 1e-4).any())
    missing = nothing if unwritten is None else unwritten.reshape(-1)
    failure = wrong_output(target, wanted, got, missing, tolerance=1e-4, law="own")
    return failure.kind, str(failure)


def test_what_is_wrong_is_said_in_words() -> None:
    values = torch.rand(8, 16, dtype=torch.float64) + 0.5
    assert "all wrong elements are zero" in describe(values, torch.zeros(8, 16))[1]
    assert "NaN" in describe(values, torch.full((8, 16), math.nan))[1]
    assert "times 2" in describe(values, values * 2)[1]
    tail = values.clone()
    tail[4:] += torch.rand(4, 16)
    kind, message = describe(values, tail)
    assert kind is FailureKind.WRONG_VALUE
    assert "from flat index 64 on" in message
    assert "at [4, 0]" in message
    assert "50 %" in message


def test_unwritten_elements_are_told_from_wrong_ones() -> None:
    values = torch.rand(8, 16, dtype=torch.float64)
    got = values.clone()
    got[7] = math.nan
    kind, message = describe(values, got, got.isnan())
    assert kind is FailureKind.UNWRITTEN_OUTPUT
    assert "from [7, 0] to [7, 15]" in message


def test_what_is_larger_than_a_stretch_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    values = 1e3 + torch.rand(1001, dtype=torch.float64)
    values[5], values[700] = math.nan, math.inf
    got = values.clone()
    got[300:900] = 0.0
    whole = describe(values, got)
    monkeypatch.setattr("gpu_worker.judge.deviation.CHUNK_ELEMENTS", {"cpu": 64})
    monkeypatch.setattr("gpu_worker.judge.diagnosis.EXAMINED", 8)
    unit, finite = unit_of(values), values[values.isfinite()]
    assert (unit.centre, unit.spread) == pytest.approx((float(finite.mean()), float(finite.std(correction=0))))
    pieces = describe(values, got)
    assert pieces[0] is FailureKind.WRONG_VALUE
    assert pieces[1] == whole[1]
    assert "all wrong elements are zero" in pieces[1]


def test_an_output_without_a_number_is_not_called_the_same_everywhere() -> None:
    assert unreadable(torch.full((4, 4), math.nan))
    assert unreadable(torch.tensor([math.inf, math.nan]))
    assert not unreadable(torch.tensor([math.nan, 1.0]))
    assert not unreadable(torch.zeros(3, dtype=torch.int32))


def test_an_infinite_error_is_put_into_words() -> None:
    assert disagreement(0.25) == "PyTorch itself errs by 0.25 of the output's spread"
    assert "inf" not in disagreement(math.inf).split()
    assert "quantiser" in disagreement(math.inf)


@pytest.mark.parametrize(
    ("scale", "offset"),
    [(1.0, 0.0), (3.0, -7.0), (1.0, 5000.0), (1e-3, 1.0), (1e18, 0.0), (1e-14, 0.0), (1e-20, 0.0), (1e30, 0.0)],
)
def test_moments_are_exact_whatever_the_scale_and_the_offset(scale: float, offset: float) -> None:
    values = torch.randn(2**21, generator=torch.Generator().manual_seed(1)) * scale + offset
    values[17] = math.inf
    exact = torch.cat([values[:17], values[18:]]).double()
    mean, spread = moments(values)
    assert spread == pytest.approx(float(exact.std(correction=0)), rel=1e-6)
    assert mean == pytest.approx(float(exact.mean()), abs=1e-5 * spread)
