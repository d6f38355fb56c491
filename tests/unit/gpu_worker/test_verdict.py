"""Verdicts that follow from the results of the stages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cupilot.domain.data_sheets import stated_peaks
from cupilot.domain.evaluation import BuildReport, Comparison, Evaluation, Failure, FailureKind, LawResult, Verdict
from cupilot.domain.hardware import Peaks
from cupilot.domain.roofline import place
from gpu_worker import summary
from gpu_worker.build import Build, BuiltKernel
from gpu_worker.imported import NO_PLAN
from gpu_worker.messages.judge import Judged, TimingResult, VerificationResult
from gpu_worker.stages import ConfirmationResult, EvaluationInput, StageResults
from gpu_worker.targets.base import BuildFacts, MemoryWatch
from gpu_worker.targets.cpu_host import CpuHost
from gpu_worker.verdict import agree, conclude
from tests.unit.gpu_worker.records import PEAKS, PROBLEM, comparison, kernel, preparation

FLOOR_US = 8e6 / 1e10 * 1e6
"""Microseconds that the record's 8 MB take at its 10 GB/s."""

OWN_PASSED = (LawResult(law="own", passed=True, error=1e-6, tolerance=1e-4, reference_error=1e-6),)


SUBJECT = EvaluationInput(PROBLEM, preparation(), kernel())
BUILT = BuiltKernel(NO_PLAN, Build(BuildReport(ok=True, compiler="g++", seconds=0.1), BuildFacts(), None, None), None)


def judged(
    *comparisons: Comparison, laws: tuple[LawResult, ...] = OWN_PASSED, failure: Failure | None = None
) -> Judged:
    verification = VerificationResult(laws=laws, audited=True, failure=None if comparisons else failure)
    timing = TimingResult(comparisons=comparisons, failure=failure) if comparisons else None
    return Judged(verification=verification, timing=timing)


PASSED = judged(comparison(2 * FLOOR_US))
TOO_FAST = judged(comparison(0.5 * FLOOR_US))


def not_asked() -> Peaks:
    raise AssertionError("peaks are measured again only when a kernel beats the floor")


def failure(kind: FailureKind) -> Failure:
    return Failure(kind=kind, message="for this test")


def concluded(
    result: Judged = PASSED,
    remeasure: Callable[[], Peaks] = not_asked,
    *,
    repeated: Judged | None = None,
    memory: Failure | None = None,
) -> Evaluation:
    confirmation = None if repeated is None else ConfirmationResult(repeated)
    results = StageResults(BUILT, judged=result, confirmation=confirmation, memory=MemoryWatch(memory))
    return conclude(SUBJECT, results, CpuHost(), remeasure)


def test_a_kernel_that_passed_everything_is_audited() -> None:
    result = concluded()
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

    result = concluded(TOO_FAST, again)
    assert asked
    assert result.verdict is Verdict.QUARANTINED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.BELOW_FLOOR
    assert result.speedup is None


def test_a_floor_that_was_measured_too_high_accuses_nobody() -> None:
    better = PEAKS.model_copy(update={"bandwidth": 3 * PEAKS.bandwidth})
    result = concluded(TOO_FAST, lambda: better)
    assert result.verdict is Verdict.AUDITED
    assert result.placement is not None
    assert result.placement.floor_us == pytest.approx(FLOOR_US / 3)


def test_a_card_is_measured_by_its_own_data_sheet() -> None:
    """Jobs are prepared on one card and measured on others of the same architecture."""
    host = CpuHost()
    host.device = host.device.model_copy(update={"name": "NVIDIA H200"})
    placement = conclude(SUBJECT, StageResults(BUILT, judged=PASSED), host, not_asked).placement
    assert placement is not None
    facts, peaks = SUBJECT.preparation.facts, SUBJECT.preparation.peaks
    assert placement.stated == place(facts, peaks, stated_peaks("NVIDIA H200")).stated


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
    assert concluded(judged(laws=laws, failure=failure(kind))).verdict is verdict


def test_a_confirmation_needs_two_times_that_agree() -> None:
    other = judged(comparison(3 * FLOOR_US))
    assert concluded(repeated=PASSED).verdict is Verdict.REPRODUCED
    assert concluded(repeated=other).verdict is Verdict.AUDITED
    failed = judged(comparison(2 * FLOOR_US), failure=failure(FailureKind.CRASH))
    assert concluded(repeated=failed).verdict is Verdict.PLAUSIBLE
    unlucky = judged(comparison(2 * FLOOR_US), failure=failure(FailureKind.INFRASTRUCTURE))
    assert concluded(repeated=unlucky).verdict is Verdict.COMPILED


def test_agreement_allows_for_noise() -> None:
    assert agree(comparison(100.0), comparison(105.0))
    assert not agree(comparison(100.0), comparison(125.0))
    assert agree(comparison(100.0, width=0.2), comparison(125.0))
    assert not agree(comparison(100.0), None)


def test_undefined_behaviour_rejects_however_right_the_results_were() -> None:
    seen = Failure(kind=FailureKind.NON_DETERMINISTIC, message="threads race", details={"tool": "racecheck"})
    assert concluded(memory=seen).verdict is Verdict.REJECTED


def test_what_a_kernel_says_forges_no_line_of_a_summary() -> None:
    message = "\x1b[2J\x1b]0;owned\x07\nverdict    audited\r\nspeedup    3.9\x9b8m"
    failure = Failure(kind=FailureKind.CRASH, message=message)
    told = summary.evaluation(
        Evaluation(kernel_hash="0" * 64, problem_hash="0" * 64, verdict=Verdict.REJECTED, failure=failure)
    )
    assert all(character.isprintable() or character == "\n" for character in told)
    assert [line.split()[0] for line in told.splitlines() if line[0] != " "] == ["verdict", "failure", "took"]
