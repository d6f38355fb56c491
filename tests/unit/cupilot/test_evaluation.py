"""Evaluations that cannot be are refused; verdicts form a ladder."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cupilot.domain.caveats import problem_warnings
from cupilot.domain.evaluation import (
    Baseline,
    Evaluation,
    Failure,
    FailureKind,
    Interval,
    PreparationResult,
    Profile,
    ProfileSource,
    Verdict,
)
from tests.unit.cupilot.factories import build, comparison, law

WRONG = Failure(kind=FailureKind.WRONG_VALUE, message="wrong")


def evaluation(verdict: Verdict, **fields: object) -> Evaluation:
    return Evaluation.model_validate({"kernel_hash": "k", "problem_hash": "p", "verdict": verdict, **fields})


def test_the_ladder() -> None:
    climbing = ["quarantined", "rejected", "compiled", "correct", "plausible", "audited", "reproduced"]
    assert [verdict.value for verdict in sorted(Verdict, key=lambda verdict: verdict.rank)] == climbing
    assert {verdict for verdict in Verdict if verdict.counts} == {Verdict.AUDITED, Verdict.REPRODUCED}


@pytest.mark.parametrize("verdict", [Verdict.AUDITED, Verdict.REPRODUCED])
def test_a_result_needs_a_build_passed_laws_and_a_timing(verdict: Verdict) -> None:
    complete = {"build": build(), "laws": (law(),), "comparisons": (comparison(),)}
    assert evaluation(verdict, **complete).speedup == 2.0
    for missing in (
        {**complete, "build": None},
        {**complete, "build": build(ok=False)},
        {**complete, "comparisons": ()},
        {**complete, "laws": (law(), law(passed=False))},
        {**complete, "failure": WRONG},
    ):
        with pytest.raises(ValidationError):
            evaluation(verdict, **missing)


@pytest.mark.parametrize("verdict", [Verdict.REJECTED, Verdict.QUARANTINED])
def test_a_bad_verdict_says_why(verdict: Verdict) -> None:
    assert evaluation(verdict, failure=WRONG, build=build()).failure == WRONG
    with pytest.raises(ValidationError, match="needs a failure"):
        evaluation(verdict, build=build())


def test_only_results_have_a_speedup() -> None:
    below = evaluation(Verdict.PLAUSIBLE, build=build(), laws=(law(),), comparisons=(comparison(),))
    assert below.speedup is None
    quarantined = evaluation(Verdict.QUARANTINED, failure=WRONG, build=build(), comparisons=(comparison(1000.0),))
    assert quarantined.speedup is None


def test_speedup_is_over_eager() -> None:
    both = (comparison(1.5, Baseline.COMPILE), comparison(3.0))
    result = evaluation(Verdict.AUDITED, build=build(), laws=(law(),), comparisons=both)
    assert result.speedup == 3.0
    compiled = result.comparison(Baseline.COMPILE)
    assert compiled is not None
    assert compiled.speedup.median == 1.5


def test_intervals_are_ordered() -> None:
    with pytest.raises(ValidationError, match="not ordered"):
        Interval(low=2.0, median=1.0, high=3.0)
    with pytest.raises(ValidationError, match="not ordered"):
        Interval(low=1.0, median=float("nan"), high=3.0)


def test_utilisation_is_a_share() -> None:
    profile = Profile(source=ProfileSource.INFERRED, metrics={"memory": 50.0, "over": 140.0, "under": -3.0})
    assert [profile.utilisation(name) for name in ("memory", "over", "under", "absent")] == [0.5, 1.0, 0.0, 0.0]


def test_a_preparation_result_is_one_of_both() -> None:
    assert PreparationResult(failure=WRONG).preparation is None
    with pytest.raises(ValidationError, match="exactly one"):
        PreparationResult()


def test_an_evaluation_survives_json() -> None:
    result = evaluation(Verdict.AUDITED, build=build(), laws=(law(),), comparisons=(comparison(),))
    again = Evaluation.model_validate_json(result.model_dump_json())
    assert again == result
    assert again.content_hash() == result.content_hash()


def test_few_laws_at_one_workload_are_a_warning_that_names_it() -> None:
    many = ("own", "signed", "wide_range")
    assert problem_warnings(many, host_bound=False, workloads={"a": many, "b": many}) == ()
    [warning] = problem_warnings(many, host_bound=False, workloads={"a": many, "b": ("own",)})
    assert "at the workload 'b' under 1 of the input laws only (own)" in warning
    [warning] = problem_warnings(("own", "perturbed", "zeros/4"), host_bound=False)
    assert "under 3 of the input laws only (own, perturbed, zeros/4)" in warning
    assert problem_warnings((*many, "zeros"), host_bound=False) == ()
