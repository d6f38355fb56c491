"""Records of measurements are compact, say where they come from, and lose nothing on their way to a file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import records, study

RECORDS = sorted(path for path in records.RESULTS.rglob("*.json") if not (path.parent / "kernel.cu").exists())
"""A folder with a kernel holds the kernel's strategy and plan beside it."""


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_small_and_names_its_command_and_commit(path: Path) -> None:
    assert path.stat().st_size <= records.MOST_BYTES
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"]
    assert record["commit"]
    assert "machine" in record or any("environment" in job for job in record["jobs"]) or record["alone"]["cards"]


def test_only_records_kernels_and_answers_of_the_study_are_kept() -> None:
    archives = [study.archive_of(matrix) for matrix in study.MATRICES]
    kept = {path.suffix for path in records.RESULTS.rglob("*") if path.is_file() and path not in archives}
    assert kept == {".json", ".cu", ".cpp"}


def test_all_results_have_less_than_a_megabyte() -> None:
    assert sum(path.stat().st_size for path in records.RESULTS.rglob("*") if path.is_file()) < 1_000_000


def test_a_row_is_a_line_and_numbers_have_seven_digits(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    rows = [{"name": f"row {number}", "value": number / 7, "words": "many " * 20} for number in range(9)]
    records.write(path, {"command": "make", "rows": rows, "none": None})
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum("row " in line for line in lines) == 9
    found = json.loads("\n".join(lines))
    assert found["rows"][3] == {**rows[3], "value": 0.4285714}
    assert found["none"] is None


def test_rows_come_back_from_a_table_as_they_were(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "of": "all", "time": {"low": 1, "high": 2}, "kinds": {"x": 1}, "none": None, "parts": [{"p": 1}]},
        {"name": "b", "of": "all", "time": {"low": 3, "high": 4, "more": 5}, "kinds": {}, "none": 1, "parts": []},
        {"name": "c", "of": "all", "time": None, "kinds": {"y": 2}, "none": 1, "parts": [], "last": True},
    ] * 5
    path = tmp_path / "record.json"
    records.write(path, {"command": "make", "rows": rows, "few": [{"a": 1}], "in": {"deep": rows}}, tables=True)
    table = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert table["same"] == {"of": "all"}
    assert table["columns"] == ["name", {"time": ["low", "high", "more?"]}, "kinds", "none", "parts", "last?"]
    assert records.load(path) == {"command": "make", "rows": rows, "few": [{"a": 1}], "in": {"deep": rows}}


def test_keys_of_a_table_keep_the_order_that_they_have_in_the_rows(tmp_path: Path) -> None:
    rows = [{"own": place, "zeros": place} for place in range(9)] + [{"own": 1, "signed": 2, "zeros": 3}]
    path = tmp_path / "record.json"
    records.write(path, rows, tables=True)
    assert json.loads(path.read_text(encoding="utf-8"))["columns"] == ["own", "signed?", "zeros"]


def test_a_commit_says_whether_the_tree_had_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records.commit() == "unknown"
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    clean = records.commit()
    assert len(clean) >= 7
    (tmp_path / "file").write_text("two")
    assert records.commit() == f"{clean}-dirty"
    (tmp_path / "COMMIT").write_text("b" * 40 + "\n")
    assert records.commit() == "b" * 40, "the files were copied over a checkout"
