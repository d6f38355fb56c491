"""Two ridge points, three zones, one floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupilot.domain.data_sheets import StatedPeaks, stated_peaks
from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy
from cupilot.domain.roofline import Placement, Work, Zone, place, place_work
from tests.unit.cupilot.factories import facts, peaks

MEGABYTE = 10**6


def place_counts(
    flops: float,
    matmul_flops: float,
    size: int,
    policy: NumericsPolicy,
    measured: Peaks,
    *,
    least: float | None = None,
    stated: StatedPeaks | None = None,
) -> Placement:
    work = Work(flops, matmul_flops, matmul_flops if least is None else least, size, policy)
    return place_work(work, measured, stated)


@pytest.mark.parametrize(
    ("intensity", "policy", "zone"),
    [
        (5, NumericsPolicy.FP32, Zone.MEMORY),
        (10, NumericsPolicy.FP32, Zone.COMPUTE),
        (50, NumericsPolicy.FP32, Zone.COMPUTE),
        (5, NumericsPolicy.TF32, Zone.MEMORY),
        (50, NumericsPolicy.TF32, Zone.MIDDLE),
        (100, NumericsPolicy.TF32, Zone.COMPUTE),
        (50, NumericsPolicy.HALF, Zone.COMPUTE),
    ],
)
def test_zone_of_a_matrix_product(intensity: float, policy: NumericsPolicy, zone: Zone) -> None:
    """The test device's ridges lie at 10 (scalar) and, under tf32 only, at 100 operations a byte."""
    flops = intensity * MEGABYTE
    assert place_counts(flops, flops, MEGABYTE, policy, peaks()).zone is zone


def test_tensor_cores_do_not_matter_to_work_they_cannot_do() -> None:
    placement = place_counts(50 * MEGABYTE, 0.0, MEGABYTE, NumericsPolicy.TF32, peaks())
    assert placement.ridge_tensor == placement.ridge_scalar == 10.0
    assert placement.zone is Zone.COMPUTE


def test_floor_is_the_slower_of_memory_and_arithmetic() -> None:
    memory_bound = place_counts(MEGABYTE, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks())
    assert (memory_bound.floor_us, memory_bound.memory_floor_us) == pytest.approx((1000.0, 1000.0))
    compute_bound = place_counts(1e8, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks())
    assert compute_bound.floor_us == compute_bound.compute_floor_us == pytest.approx(10_000.0)


def test_mixed_work_is_summed_over_its_units() -> None:
    placement = place_counts(2e8, 1e8, MEGABYTE, NumericsPolicy.TF32, peaks())
    assert placement.compute_floor_us == pytest.approx(1e6 * (1e8 / 1e10 + 1e8 / 1e11))


def test_nothing_is_faster_than_an_empty_launch() -> None:
    placement = place_counts(1.0, 0.0, 4, NumericsPolicy.FP32, peaks(launch_seconds=3e-6))
    assert placement.floor_us == pytest.approx(3.0)


def test_placement_of_facts_counts_their_own_work() -> None:
    placement = place(facts(), peaks())
    assert placement.intensity == pytest.approx(5 / 8)
    assert placement.zone is Zone.MEMORY


@given(
    flops=st.floats(0, 1e15),
    share=st.floats(0, 1),
    size=st.integers(0, 10**12),
    policy=st.sampled_from(NumericsPolicy),
)
def test_the_floor_is_never_below_either_limit(flops: float, share: float, size: int, policy: NumericsPolicy) -> None:
    placement = place_counts(flops, flops * share, size, policy, peaks())
    assert placement.floor_us >= max(placement.memory_floor_us, placement.compute_floor_us)
    assert placement.ridge_tensor >= placement.ridge_scalar


def test_the_floor_counts_the_best_algorithm_and_the_direct_count_stands_beside_it() -> None:
    placement = place_counts(1e8, 1e8, MEGABYTE, NumericsPolicy.FP32, peaks(), least=2e7)
    assert placement.floor_us == placement.compute_floor_us == pytest.approx(2_000.0)
    assert placement.direct_us == pytest.approx(10_000.0)
    assert placement.zone is Zone.COMPUTE
    assert (placement.floor_share(4_000.0), placement.direct_share(4_000.0)) == pytest.approx((0.5, 2.5))
    plain = place_counts(1e8, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks())
    assert plain.direct_share(20_000.0) is None


def test_cards_compare_by_stated_peaks_and_physics_takes_the_higher() -> None:
    """The test device does 1 GB/s and 10 GFLOP/s; its maker says twice the one and half of the other."""
    sheet = StatedPeaks(2e9, 5e9, None, None, "a data sheet")
    slow = place_counts(MEGABYTE, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks(), stated=sheet)
    assert (slow.floor_us, slow.physical_us) == pytest.approx((1000.0, 500.0))
    assert slow.floor_share(1000.0) == pytest.approx(0.5)
    fast = place_counts(1e8, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks(), stated=sheet)
    assert fast.stated is not None
    assert (fast.floor_us, fast.physical_us, fast.stated.floor_us) == pytest.approx((10_000.0, 10_000.0, 20_000.0))


def test_records_from_before_have_one_floor() -> None:
    fields = place_counts(1e8, 0.0, MEGABYTE, NumericsPolicy.FP32, peaks()).model_dump()
    for name in ("direct_us", "limit_us", "stated"):
        del fields[name]
    old = Placement.model_validate(fields)
    assert old.physical_us == old.floor_us
    assert old.direct_share(10_000.0) is None


def test_a_data_sheet_is_of_one_model() -> None:
    sheet = stated_peaks("NVIDIA H200")
    assert sheet is not None
    assert (sheet.bandwidth, sheet.fp32, sheet.tf32, sheet.half) == (4.8e12, 67e12, 494.5e12, 989.5e12)
    assert stated_peaks("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
