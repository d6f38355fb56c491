"""The record of a GPU run that was ended and went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_tests

MACHINE = "two cards"


def _row(test: str, outcome: str, commit: str, **more: object) -> dict[str, object]:
    row = {"test": f"tests/gpu/test_a.py::{test}", "outcome": outcome, "why": "", "seconds": 1.5, "printed": ""}
    return {**row, "commit": commit, **more}


def _record(tmp_path: Path, *rows: dict[str, object]) -> tuple[int, dict[str, object]]:
    log, out = tmp_path / "log", tmp_path / "record.json"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code = gpu_tests.main(["--out", str(out), "--log", str(log), "--machine", MACHINE])
    return code, json.loads(out.read_text())


def test_the_last_outcome_counts_and_an_earlier_failure_is_named(tmp_path: Path) -> None:
    first = (_row("test_b", "failed", "one", why="E 1"), _row("test_c", "passed", "one", printed="said"))
    code, record = _record(
        tmp_path, *first, _row("test_b", "passed", "two"), _row("test_d", "skipped", "two", why="no")
    )
    assert code == 0
    assert (record["machine"], record["passed"], record["skipped"], record["failed"]) == (MACHINE, 2, 1, {})
    assert record["failed_before_they_passed"] == ["tests/gpu/test_a.py::test_b"]
    assert record["tests_of_commit"] == {"one": 1, "two": 2}
    assert record["files"] == [{"file": "tests/gpu/test_a.py", "passed": 2, "skipped": 1, "seconds": 4.5}]
    assert record["printed"] == {"test_c": "said"}


@pytest.mark.parametrize("rows", [(), (_row("test_b", "failed", "one", why="E 1"),)])
def test_a_failure_and_a_run_without_tests_are_told_by_the_status(
    tmp_path: Path, rows: tuple[dict[str, object], ...]
) -> None:
    code, _ = _record(tmp_path, *rows)
    assert code == 1
