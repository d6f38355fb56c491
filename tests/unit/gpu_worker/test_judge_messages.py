"""The judge's answers as the supervisor accepts them: every list, string and number is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.messages.bounds import MAX_ITEMS
from gpu_worker.messages.judge import (
    MAX_NOTES,
    NOTE_CHARACTERS,
    Done,
    Judged,
    Prepared,
    TimingResult,
    Unusable,
    VerificationResult,
    short_notes,
)
from tests.unit.gpu_worker.records import facts

INTERVAL = {"low": 1.0, "median": 2.0, "high": 3.0}
COMPARISON = {
    "baseline": "eager",
    "kernel_us": INTERVAL,
    "baseline_us": INTERVAL,
    "speedup": INTERVAL,
    "pairs": 6,
    "launches": 60,
}
LAW = {"law": "own", "passed": True, "error": 0.0, "tolerance": 1.0, "reference_error": 0.0}
VERIFICATION: dict[str, Any] = {
    "laws": [LAW],
    "failure": None,
    "audited": True,
    "lost": False,
    "facts": {"occupancy_pct": 50.0},
}
TIMING: dict[str, Any] = {
    "comparisons": [COMPARISON],
    "failure": None,
    "lost": False,
    "notes": ["a note"],
    "handover_us": None,
}


def done(verification: dict[str, Any], timing: dict[str, Any] | None) -> Done:
    answer = {"kind": "judged", "verification": verification, "timing": timing}
    return Done.model_validate({"event": "done", "answer": answer})


def test_an_honest_judgement_is_accepted() -> None:
    judged = done(VERIFICATION, TIMING).answer
    assert isinstance(judged, Judged)
    assert judged.verification.laws[0].passed
    assert judged.comparisons[0].pairs == 6
    assert judged.eager == judged.comparisons[0]
    failed = LAW | {"passed": False, "error": "Infinity"}
    assert VerificationResult.model_validate(VERIFICATION | {"laws": [failed]}).laws[0].error == float("inf")


def test_a_judgement_is_frozen_and_read_back_as_it_was() -> None:
    sent = done(VERIFICATION, TIMING)
    assert Done.model_validate(sent.as_json()) == sent
    with pytest.raises(ValidationError, match="frozen"):
        sent.answer = Unusable(failure=Failure(kind=FailureKind.TIMEOUT, message="m"))


FAILURES = [
    {"failure": {"kind": "crash", "message": "m", "details": {"x": [0] * (MAX_ITEMS + 1)}}},
    {"failure": {"kind": "crash", "message": "m", "details": {"x": "y" * 20_000}}},
    {"failure": {"kind": "crash", "message": "m", "details": {str(key): "y" * 10_000 for key in range(50)}}},
    {"more": 1},
]


@pytest.mark.parametrize(
    "change",
    [
        {"laws": [LAW] * (MAX_ITEMS + 1)},
        {"laws": [LAW | {"law": "x" * 300}]},
        {"facts": [1]},
        {"facts": {"x": "y" * 20_000}},
        {"audited": [0]},
        *FAILURES,
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_verification_beyond_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        done(VERIFICATION | change, None)


@pytest.mark.parametrize(
    "change",
    [
        {"comparisons": [COMPARISON] * 10},
        {"comparisons": [COMPARISON | {"speedup": {"low": 1.0, "median": 2.0, "high": "Infinity"}}]},
        {"comparisons": [COMPARISON | {"speedup": {"low": "-Infinity", "median": 2.0, "high": 3.0}}]},
        {"comparisons": [COMPARISON | {"pairs": 10**30}]},
        {"comparisons": [COMPARISON | {"launches": -1}]},
        {"comparisons": [COMPARISON | {"flags": {"mode": "x" * 20_000}}]},
        {"comparisons": [COMPARISON | {"flags": {str(key): "" for key in range(MAX_ITEMS + 1)}}]},
        {"notes": ["x"] * (MAX_NOTES + 1)},
        {"notes": ["x" * (NOTE_CHARACTERS + 1)]},
        {"notes": [["x"]]},
        {"handover_us": [1.0] * 1000},
        {"handover_us": "Infinity"},
        {"handover_us": -1.0},
        *FAILURES,
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_timing_beyond_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        done(VERIFICATION, TIMING | change)


def test_notes_are_shortened_to_what_is_accepted() -> None:
    notes = short_notes(["x" * 10**5] * 1000)
    assert TimingResult.model_validate(TIMING | {"notes": notes}).notes == notes


def test_failures_in_place_of_a_result_are_bounded_too() -> None:
    failure = {"kind": "timeout", "message": "m", "details": {}}
    assert Unusable.model_validate({"failure": failure}).failure == Failure(kind=FailureKind.TIMEOUT, message="m")
    with pytest.raises(ValidationError):
        Unusable.model_validate({"failure": failure | {"details": {"x": list(range(MAX_ITEMS + 1))}}})


PREPARATION: dict[str, Any] = {
    "facts": facts().model_dump(mode="json"),
    "laws": ["own"],
    "tolerances": {"own": 1e-4},
    "admission": {"zeros": True},
    "notes": ["n"],
    "baseline_us": INTERVAL,
}


def test_an_honest_preparation_is_accepted() -> None:
    assert Prepared.model_validate(PREPARATION).laws == ("own",)


@pytest.mark.parametrize(
    "change",
    [
        {"laws": ["own"] * (MAX_ITEMS + 1)},
        {"laws": ["x" * 300]},
        {"tolerances": {"own": "NaN"}},
        {"tolerances": {str(key): 1.0 for key in range(MAX_ITEMS + 1)}},
        {"admission": {str(key): True for key in range(MAX_ITEMS + 1)}},
        {"baseline_us": {"low": 1.0, "median": 2.0, "high": "Infinity"}},
        {"notes": ["x"] * (MAX_NOTES + 1)},
        {"notes": ["x" * (NOTE_CHARACTERS + 1)]},
        {"facts": []},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_preparation_beyond_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Prepared.model_validate(PREPARATION | change)
