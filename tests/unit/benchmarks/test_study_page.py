"""The studies' page says what its records hold, and the archives beside them hold every answer."""

from __future__ import annotations

import hashlib
import tarfile

import pytest

from benchmarks import records, study, study_page


def test_page_and_record_agree() -> None:
    assert study_page.PAGE.read_text(encoding="utf-8") == study_page.page(), (
        "run python -m benchmarks.study_page --write"
    )


@pytest.mark.parametrize("matrix", study.MATRICES)
def test_the_archive_is_the_recorded_one_and_has_an_answer_to_each_prompt(matrix: str) -> None:
    record, path = records.read(f"{matrix}_cpu"), study.archive_of(matrix)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]
    with tarfile.open(path) as archive:
        names = archive.getnames()
    keys = {name.partition("/")[0] for name in names}
    assert len(keys) == record["answers"]
    assert set(names) == {f"{key}/{part}.txt" for key in keys for part in ("prompt", "answer")}


@pytest.mark.parametrize("matrix", study.MATRICES)
def test_what_the_page_says_in_words_is_so(matrix: str) -> None:
    report = study_page.report_of(records.read(f"{matrix}_cpu"))
    assert sum(row.valid for row in report.outcomes) >= 0.95 * sum(row.judged for row in report.outcomes)
    aligned = [arm.name for arm in report.experiment.arms if arm.method.get("alignment", False)]
    assert aligned == (["with alignment"] if matrix == "study_agents" else [])


@pytest.mark.parametrize("matrix", study.MATRICES)
def test_every_arm_has_ended_a_job_on_the_same_problems(matrix: str) -> None:
    report = study_page.report_of(records.read(f"{matrix}_cpu"))
    assert report.experiment.final
    assert {arm.finished for arm in report.arms} == {len(study_page.problems_of(report))}
