"""The study's page says what its record holds, and the archive beside it holds every answer."""

from __future__ import annotations

import hashlib
import tarfile

from benchmarks import records, study, study_page


def test_page_and_record_agree() -> None:
    assert study_page.PAGE.read_text(encoding="utf-8") == study_page.page(), (
        "run python -m benchmarks.study_page --write"
    )


def test_the_archive_is_the_recorded_one_and_has_an_answer_to_each_prompt() -> None:
    record = records.read("study_cpu")
    assert hashlib.sha256(study.ARCHIVE.read_bytes()).hexdigest() == record["sha256"]
    with tarfile.open(study.ARCHIVE) as archive:
        names = archive.getnames()
    keys = {name.partition("/")[0] for name in names}
    assert len(keys) == record["answers"]
    assert set(names) == {f"{key}/{part}.txt" for key in keys for part in ("prompt", "answer")}


def test_what_the_page_says_in_words_is_so() -> None:
    report = records.read("study_cpu")["report"]
    assert {row["claim"] for row in report["comparisons"]} == {"no difference shown"}
    assert all(row["valid"] == row["judged"] for row in report["outcomes"])
    assert {arm["method"].get("alignment", False) for arm in report["experiment"]["arms"]} == {False}


def test_every_job_of_the_study_ended() -> None:
    report = records.read("study_cpu")["report"]
    assert report["experiment"]["final"]
    assert {arm["finished"] for arm in report["arms"]} == {len(report["experiment"]["problems"])}
