"""The coverage page says what the run found, and that run was of all problems as they are today."""

from __future__ import annotations

from benchmarks import coverage_page, records
from cupilot.domain import problems


def test_page_and_run_agree() -> None:
    assert coverage_page.PAGE.read_text(encoding="utf-8") == coverage_page.page(), (
        "run python -m benchmarks.coverage_page --write"
    )


def test_every_problem_has_kernels_for_both_targets() -> None:
    rows = records.read("coverage")["problems"]
    assert sorted(row["problem"] for row in rows) == problems.names()
    assert not [row["problem"] for row in rows if row["refused"]]
