"""Counters are read of promoted kernels and of no other, and a profile says which of the two it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cupilot.domain.evaluation import Evaluation, Preparation, ProfileSource, SweepPoint, Verdict
from cupilot.domain.imported import ImportedKernel
from cupilot.domain.kernel import Kernel
from cupilot.domain.problem import ProblemFacts
from gpu_worker import summary
from gpu_worker.build import BuiltKernel
from gpu_worker.evaluator import Evaluator, never_cancelled
from gpu_worker.profiling import Profiling, is_promoted
from gpu_worker.reuse import EvaluationStore
from gpu_worker.stages import Call, EvaluationInput
from gpu_worker.targets.base import Counters
from gpu_worker.targets.cpu_host import CpuHost
from tests.unit.gpu_worker.lines import KERNEL, PLAN, PROBLEM, kernel
from tests.unit.gpu_worker.records import comparison

pytestmark = pytest.mark.judge

OUT_OF_REACH = 1e6
"""A speedup that no kernel here has."""


def call(**changes: Any) -> Call:
    return Call(**{"deadline": 0.0, "cancelled": never_cancelled, "thorough": False, **changes})


def test_promoted_is_what_is_not_certainly_slower_than_the_best() -> None:
    twice = comparison(1000.0, 2000.0)
    assert is_promoted(twice, call()), "the job has no best kernel yet"
    assert is_promoted(twice, call(incumbent=1.5))
    assert is_promoted(twice, call(incumbent=twice.speedup.high)), "it may be as fast"
    assert not is_promoted(twice, call(incumbent=2.1))
    assert is_promoted(twice, call(incumbent=2.1, thorough=True)), "a confirmation is of a champion"
    assert not is_promoted(twice, call(candidate=False))
    assert not is_promoted(None, call()), "it was not timed"


@pytest.fixture
def counted(evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The binaries whose counters were read, on a CPU that has some; nothing is known of any kernel."""
    seen: list[Path] = []

    def measured_profile(_: CpuHost, binary: Path, *__: object) -> Counters:
        seen.append(binary)
        return Counters({"l2_hit_pct": 40.0}, ("stall_gmma",))

    monkeypatch.setattr(CpuHost, "measured_profile", measured_profile)
    monkeypatch.setattr(evaluator, "_known", EvaluationStore(tmp_path))
    return seen


def source_of(evaluation: Evaluation) -> tuple[ProfileSource, bool]:
    assert evaluation.verdict is Verdict.AUDITED, evaluation.failure
    assert evaluation.profile is not None
    return evaluation.profile.source, evaluation.profile.promoted


def test_a_kernel_that_may_be_the_best_is_counted(
    evaluator: Evaluator, preparation: Preparation, counted: list[Path]
) -> None:
    found = evaluator.evaluate(PROBLEM, preparation, kernel())
    assert source_of(found) == (ProfileSource.MEASURED, True)
    assert found.profile is not None
    assert found.profile.metrics["l2_hit_pct"] == 40.0
    assert found.profile.missing == ("stall_gmma",)
    assert len(counted) == 1


@pytest.mark.parametrize("told", [{"incumbent": OUT_OF_REACH}, {"candidate": False}])
def test_others_get_the_inferred_profile_and_it_says_so(
    evaluator: Evaluator, preparation: Preparation, counted: list[Path], told: dict[str, Any]
) -> None:
    found = evaluator.evaluate(PROBLEM, preparation, kernel(), **told)
    assert source_of(found) == (ProfileSource.INFERRED, False)
    assert found.profile is not None
    assert {"memory_throughput_pct", "compute_throughput_pct", "floor_pct"} <= found.profile.metrics.keys()
    assert "profile    inferred (no counters: not among the fastest): " in summary.evaluation(found)
    assert counted == []


def test_what_another_job_did_not_promote_is_counted_once_where_it_is_first_promoted(
    evaluator: Evaluator, preparation: Preparation, counted: list[Path]
) -> None:
    slow = evaluator.evaluate(PROBLEM, preparation, kernel(), incumbent=OUT_OF_REACH)
    assert counted == []
    first, second = (evaluator.evaluate(PROBLEM, preparation, kernel()) for _ in range(2))
    assert source_of(slow) == (ProfileSource.INFERRED, False)
    assert source_of(first) == source_of(second) == (ProfileSource.MEASURED, True)
    assert len(counted) == 1, "the second is known with its counters"
    assert slow.profile is not None
    assert first.profile is not None
    assert first.profile.metrics == {**slow.profile.metrics, "l2_hit_pct": 40.0}
    assert first.reused
    assert second.reused
    assert first.measurement == second.measurement == slow.measurement
    assert first.comparisons == slow.comparisons


def test_of_a_swept_kernel_the_point_that_was_chosen_is_counted(
    evaluator: Evaluator, preparation: Preparation, counted: list[Path]
) -> None:
    tunable = {"SCALE": {"value": 3, "choices": [2, 3]}}
    subject = kernel(KERNEL.replace("2.0f", "float(SCALE)"), {**PLAN, "tunables": tunable})
    once = evaluator.evaluate(PROBLEM, preparation, kernel(), incumbent=OUT_OF_REACH)
    assert once.comparisons
    point = SweepPoint(
        tunables={"SCALE": 2}, speedup=once.comparisons[0].speedup, kernel_us=once.comparisons[0].kernel_us
    )
    swept = once.model_copy(update={"tunables": {"SCALE": 2}, "sweep": (point,)})
    built: list[dict[str, int]] = []

    def build(chosen: Kernel | ImportedKernel, facts: ProblemFacts) -> BuiltKernel:
        built.append(chosen.tunable_values())
        return evaluator._build(chosen, facts)

    profiling = Profiling(evaluator._host)
    assert not profiling.needs_counters(swept, subject, call(incumbent=OUT_OF_REACH))
    assert profiling.needs_counters(swept, subject, call())
    known = profiling.add_counters(swept, EvaluationInput(PROBLEM, preparation, subject), build)
    assert built == [{"SCALE": 2}]
    assert len(counted) == 1
    assert source_of(known) == (ProfileSource.MEASURED, True)
    assert not profiling.needs_counters(known, subject, call()), "it has them now"
