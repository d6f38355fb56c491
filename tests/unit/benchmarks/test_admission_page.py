"""The admission page says what the run printed, and that run was of all problems of level 1 as they are today."""

from __future__ import annotations

from benchmarks import admission_page, records
from cupilot.domain import problems


def test_page_and_run_agree() -> None:
    assert admission_page.PAGE.read_text(encoding="utf-8") == admission_page.page(), (
        "run python -m benchmarks.admission_page --write"
    )


def test_every_problem_of_level_1_was_admitted_as_it_is() -> None:
    admitted = records.load(admission_page.RECORDS)["problems"]
    assert [record["problem"] for record in admitted] == list(problems.names("level1"))
    for record in admitted:
        assert problems.load(record["problem"], size="full").content_hash().startswith(record["problem_hash"])
        assert record["failure"] is None
        assert record["admission"]
        assert all(record["admission"].values())
