"""What the supervisor takes from the judge: every list, string and number of it is bounded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cupilot.domain.evaluation import Failure, FailureKind
from gpu_worker.judge_answers import (
    MAX_ITEMS,
    MAX_NOTES,
    NOTE_CHARACTERS,
    JudgeFindings,
    JudgePreparation,
    failure_from,
    short_notes,
)

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
FINDINGS: dict[str, Any] = {
    "laws": [LAW],
    "comparisons": [COMPARISON],
    "failure": None,
    "audited": True,
    "lost": False,
    "facts": {"occupancy_pct": 50.0},
    "notes": ["a note"],
    "handover_us": None,
}


def test_honest_findings_are_taken() -> None:
    findings = JudgeFindings.model_validate(FINDINGS)
    assert findings.laws[0].passed
    assert findings.comparisons[0].pairs == 6
    failed = LAW | {"passed": False, "error": "Infinity"}
    assert JudgeFindings.model_validate(FINDINGS | {"laws": [failed]}).laws[0].error == float("inf")


@pytest.mark.parametrize(
    "change",
    [
        {"laws": [LAW] * (MAX_ITEMS + 1)},
        {"laws": [LAW | {"law": "x" * 300}]},
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
        {"facts": [1]},
        {"facts": {"x": "y" * 20_000}},
        {"audited": [0]},
        {"failure": {"kind": "crash", "message": "m", "details": {"x": [0] * (MAX_ITEMS + 1)}}},
        {"failure": {"kind": "crash", "message": "m", "details": {"x": "y" * 20_000}}},
        {"failure": {"kind": "crash", "message": "m", "details": {str(key): "y" * 10_000 for key in range(50)}}},
        {"more": 1},
    ],
    ids=lambda change: str(change)[:60],
)
def test_findings_beyond_bounds_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JudgeFindings.model_validate(FINDINGS | change)


def test_notes_are_shortened_to_what_is_taken() -> None:
    notes = short_notes(["x" * 10**5] * 1000)
    assert JudgeFindings.model_validate(FINDINGS | {"notes": notes}).notes == tuple(notes)


def test_failures_outside_of_findings_are_bounded_too() -> None:
    failure = {"kind": "timeout", "message": "m", "details": {}}
    assert failure_from(failure) == Failure(kind=FailureKind.TIMEOUT, message="m")
    with pytest.raises(ValidationError):
        failure_from(failure | {"details": {"x": list(range(MAX_ITEMS + 1))}})


PREPARATION: dict[str, Any] = {
    "facts": {},
    "laws": ["own"],
    "tolerances": {"own": 1e-4},
    "admission": {"zeros": True},
    "notes": ["n"],
    "baseline_us": INTERVAL,
}


def test_an_honest_preparation_is_taken() -> None:
    assert JudgePreparation.model_validate(PREPARATION).laws == ("own",)


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
        JudgePreparation.model_validate(PREPARATION | change)
