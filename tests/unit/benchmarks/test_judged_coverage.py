"""A run that judges the playbook's kernels goes on where it stopped, and its page says what the record holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import coverage_page, judged_coverage, records
from cupilot.domain import problems
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Verdict
from gpu_worker.evaluator import Evaluator
from tests.patience.devices import share_peaks
from tests.patience.judges import patient_judges

ROWS = [
    {"suite": "level1", "problem": "softmax", "kernel": "plain", "verdict": "audited", "speedup": [1.5, 2.0, 2.5]},
    {"suite": "level1", "problem": "gelu", "kernel": "plain", "verdict": "rejected", "failure": "crash: a | b"},
]


def test_a_run_that_is_over_at_once_keeps_the_rows_that_there_are(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"problems": ROWS}))
    options = ["--seconds", "-1", "--out", str(record), "--work-dir", str(tmp_path / "work")]
    assert judged_coverage.main(options) == 1
    assert json.loads(record.read_text())["problems"] == ROWS


@pytest.fixture
def relu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have one problem only, of which no time has to be right."""
    monkeypatch.setattr(problems, "names", lambda _suite=None: ["relu"])
    share_peaks(monkeypatch.setattr)
    with patient_judges(quick=True):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("relu")
def test_a_problem_is_judged_and_kept(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ["--suites", "level1", "--out", str(record), "--work-dir", str(tmp_path / "work")]
    assert judged_coverage.main(options) == 0
    first = json.loads(record.read_text())
    (row,) = first["problems"]
    assert first["complete"]
    assert row["verdict"] in ("audited", "reproduced")
    assert row["speedup"][0] > 0
    assert judged_coverage.main(options) == 0
    assert json.loads(record.read_text()) == first, "nothing was judged again"


@pytest.mark.slow
@pytest.mark.usefixtures("relu")
def test_a_kernel_that_failed_is_told_from_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Evaluation(
        kernel_hash="0" * 64,
        problem_hash="0" * 64,
        verdict=Verdict.COMPILED,
        failure=Failure(kind=FailureKind.INFRASTRUCTURE, message="too busy"),
        seconds=0.1,
    )
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_, **__: failed)
    record = tmp_path / "record.json"
    options = ["--suites", "level1", "--out", str(record), "--work-dir", str(tmp_path / "work")]
    assert judged_coverage.main(options) == 1
    (row,) = json.loads(record.read_text())["problems"]
    assert (row["verdict"], row["failure"]) == ("compiled", "infrastructure: too busy")
    assert row["kernel"]


def test_the_page_says_what_was_judged_and_what_was_only_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = [
        {"suite": "level1", "problem": name, "family": "rows", "launches": 1, "refused": {}}
        for name in ("softmax", "gelu", "argmax")
    ]
    half = {"problems": 6, "refused": {"gelu_float16": "forward failed: NotImplementedError (line 9: return x)"}}
    cards = [
        {"suite": "level1", "problem": "softmax", "kernel": "plain", "verdict": "audited", "speedup": [1.9, 2.0, 2.1],
         "of_bound": 0.876, "commit": "a" * 12},
        {"suite": "fusion", "problem": "gelu_bfloat16", "kernel": "plain", "verdict": "audited", "speedup": [7, 8, 9],
         "commit": "b" * 12},
        {"suite": "fusion", "problem": "argmax", "kernel": "", "verdict": "not prepared", "failure": "errs by 0.2",
         "commit": "a" * 12},
    ]  # fmt: skip
    compiled[1]["suite"] = "fusion"
    times = {
        "softmax": {"eager_us": 9.0, "strategies": [["plain", 5.0, 4.5, 20, 0, "0.0e+00"]]},
        "gelu_bfloat16": {"eager_us": 4.0, "strategies": [["plain", 5.0, 5.0, 20, 0, "0.0e+00"]]},
    }
    found = {
        "coverage": {"problems": compiled, "half_types": half},
        "judged_coverage": {"problems": ROWS},
        "h200_judged_coverage": {"problems": cards},
        "h200_strategy_times": {"commit": "b" * 40, "problems": times},
    }
    monkeypatch.setattr(records, "read", lambda name: found[name])
    text = coverage_page.page()
    assert "2 were judged on `cpu`, and the\nkernels of 1 were audited or better" in text
    assert "5 of\n6 have such kernels. `gelu_float16` has none: forward failed: NotImplementedError." in text
    softmax = "| level1 | softmax | rows | 1 |  | audited | 2.00 (1.50 to 2.50) | audited | 2.00 (1.90 to 2.10) | 88% |"
    assert f"{softmax} 2.00 |" in text
    gelu = "| fusion | gelu | rows | 1 |  | rejected: crash: a \\| b |  | audited | 8.00 (7.00 to 9.00) |  | 0.80 |"
    assert gelu in text
    assert "| level1 | argmax | rows | 1 |  | no |  | not prepared: errs by 0.2 |  |  |  |" in text
    assert "2 of 3 problems (PyTorch's own answers to `argmax` were no measure of a kernel)" in text
    assert "is 2.00x for level 1 and 0.80x for the others" in text
    assert "are\n`gelu`.\n" in text
    calls = text.split("## Supported calls")[1]
    assert "`index_put`" in calls
    assert "`i0`" not in calls


def test_records_of_several_cards_become_one(tmp_path: Path) -> None:
    stamp = {"command": "run", "commit": "a" * 40, "machine": "a machine", "begun": "2026-01-01T00:00:00+00:00"}
    first, second = (tmp_path / name for name in ("first.json", "second.json"))
    first.write_text(json.dumps({**stamp, "complete": True, "problems": [{**ROWS[0], "judged_seconds": 2.0}, ROWS[1]]}))
    second.write_text(json.dumps({**stamp, "complete": False, "problems": [{**ROWS[1], "verdict": "audited"}]}))
    out = tmp_path / "one.json"
    options = ["--merge", str(first), str(second), "--machine", "two cards", "--out", str(out)]
    assert judged_coverage.main(options) == 0
    record = json.loads(out.read_text())
    assert record["machine"] == "two cards"
    assert [(row["problem"], row["verdict"]) for row in record["problems"]] == [
        ("gelu", "audited"),
        ("softmax", "audited"),
    ]
    assert all("judged_seconds" not in row for row in record["problems"])
