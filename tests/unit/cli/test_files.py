"""Results on disk."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from uuid import UUID

import pytest

from cupilot.cli import files
from cupilot.cli.files import export_folder, write_result
from cupilot.domain.errors import InvalidInput

JOB = UUID(int=7)


def _zip(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def test_a_result_lies_in_a_folder_named_after_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (b"old", b"new"):
        folder = write_result(_zip(**{"kernel.cu": content}), JOB, None)
    assert folder == Path("cupilot-results") / str(JOB)
    assert (folder / "kernel.cu").read_bytes() == b"new"


def test_no_two_exports_share_a_folder() -> None:
    base = Path("cupilot-exports")
    assert export_folder(str(JOB), "torch") == base / str(JOB) / "torch"
    assert export_folder(str(JOB), "torch", "12", None) == base / str(JOB) / "torch-12"
    assert export_folder(str(JOB), "bundle", None, "../a b") == base / str(JOB) / "bundle-.._a_b"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", "..", "./x"])
def test_a_file_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        write_result(_zip(**{name: b"x"}), JOB, tmp_path / "out")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    with pytest.raises(InvalidInput, match="too large"):
        write_result(_zip(a=b"0" * 2000), JOB, tmp_path)


def test_what_is_no_zip_or_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        write_result(b"<html>", JOB, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_result(_zip(a=b"x"), JOB, tmp_path / "file")
