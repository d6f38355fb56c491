"""From what was measured to a verdict."""

from __future__ import annotations

import pytest

from cupilot.domain.evaluation import BuildReport, Failure, FailureKind, LawResult, Verdict
from cupilot.domain.hardware import Peaks
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.verdict import Measured, agree, conclude
from tests.unit.gpu_worker.records import PEAKS, PROBLEM, comparison, kernel, preparation

FLOOR_US = 8e6 / 1e10 * 1e6
"""What the record's 8 MB take at its 10 GB/s."""

OWN_PASSED = (LawResult(law="own", passed=True, error=1e-6, tolerance=1e-4, reference_error=1e-6),)


def measured(**changes: object) -> Measured:
    build = BuildReport(ok=True, compiler="g++", seconds=0.1)
    known = Measured(PROBLEM, preparation(), kernel(), build, laws=OWN_PASSED, audited=True)
    known.comparisons = (comparison(2 * FLOOR_US),)
    for name, value in changes.items():
        setattr(known, name, value)
    return known


def not_asked() -> Peaks:
    raise AssertionError("peaks are measured again only when a kernel beats the floor")


def failure(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="for this test")


def test_a_kernel_that_passed_everything_is_audited() -> None:
    result = conclude(measured(), CpuHost(), not_asked)
    assert result.verdict is Verdict.AUDITED
    assert result.speedup == pytest.approx(2000.0 / (2 * FLOOR_US))
    assert result.profile is not None
    assert result.profile.metrics["floor_pct"] == pytest.approx(50.0)
    assert result.profile.metrics["memory_throughput_pct"] == pytest.approx(50.0)


def test_faster_than_the_floor_is_quarantined_after_measuring_the_peaks_again() -> None:
    asked = []

    def again() -> Peaks:
        asked.append(True)
        return PEAKS

    result = conclude(measured(comparisons=(comparison(0.5 * FLOOR_US),)), CpuHost(), again)
    assert asked
    assert result.verdict is Verdict.QUARANTINED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.BELOW_FLOOR
    assert result.speedup is None


def test_a_floor_that_was_measured_too_high_accuses_nobody() -> None:
    better = PEAKS.model_copy(update={"bandwidth": 3 * PEAKS.bandwidth})
    result = conclude(measured(comparisons=(comparison(0.5 * FLOOR_US),)), CpuHost(), lambda: better)
    assert result.verdict is Verdict.AUDITED
    assert result.placement is not None
    assert result.placement.floor_us == pytest.approx(FLOOR_US / 3)


def test_peaks_that_were_seen_since_the_preparation_count() -> None:
    better = PEAKS.model_copy(update={"bandwidth": 2 * PEAKS.bandwidth})
    result = conclude(measured(peaks=better), CpuHost(), not_asked)
    assert result.profile is not None
    assert result.profile.metrics["floor_pct"] == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("kind", "laws", "verdict"),
    [
        (FailureKind.WRONG_VALUE, (), Verdict.REJECTED),
        (FailureKind.WRONG_VALUE, OWN_PASSED, Verdict.CORRECT),
        (FailureKind.INSENSITIVE, OWN_PASSED, Verdict.CORRECT),
        (FailureKind.CRASH, OWN_PASSED, Verdict.REJECTED),
        (FailureKind.INPUT_MUTATED, OWN_PASSED, Verdict.REJECTED),
        (FailureKind.CLOCK_MISMATCH, OWN_PASSED, Verdict.QUARANTINED),
        (FailureKind.INFRASTRUCTURE, OWN_PASSED, Verdict.COMPILED),
    ],
)
def test_how_far_a_failing_kernel_climbed(kind: FailureKind, laws: tuple[LawResult, ...], verdict: Verdict) -> None:
    known = measured(failure=failure(kind), laws=laws, comparisons=())
    assert conclude(known, CpuHost(), not_asked).verdict is verdict


def test_a_confirmation_needs_two_times_that_agree() -> None:
    same, other = measured(), measured(comparisons=(comparison(3 * FLOOR_US),))
    assert conclude(measured(repeated=same), CpuHost(), not_asked).verdict is Verdict.REPRODUCED
    assert conclude(measured(repeated=other), CpuHost(), not_asked).verdict is Verdict.AUDITED
    failed = measured(failure=failure(FailureKind.CRASH))
    assert conclude(measured(repeated=failed), CpuHost(), not_asked).verdict is Verdict.PLAUSIBLE
    unlucky = measured(failure=failure(FailureKind.INFRASTRUCTURE))
    assert conclude(measured(repeated=unlucky), CpuHost(), not_asked).verdict is Verdict.COMPILED


def test_agreement_allows_for_noise() -> None:
    assert agree(comparison(100.0), comparison(105.0))
    assert not agree(comparison(100.0), comparison(125.0))
    assert agree(comparison(100.0, width=0.2), comparison(125.0))
    assert not agree(comparison(100.0), None)


def test_undefined_behaviour_rejects_however_right_the_results_were() -> None:
    seen = Failure(kind=FailureKind.NON_DETERMINISTIC, message="threads race", details={"tool": "racecheck"})
    assert conclude(measured(failure=seen), CpuHost(), not_asked).verdict is Verdict.REJECTED
