"""The work folder of the command line: nobody else may plant builds or results there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cupilot.domain.errors import InvalidInput
from gpu_worker.__main__ import main
from gpu_worker.work_dir import default_work_dir, own_work_dir


def test_each_user_has_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = default_work_dir()
    monkeypatch.setattr(os, "geteuid", lambda: 4_242)
    assert default_work_dir() != mine


def test_a_folder_that_is_made_is_writable_for_its_owner_only(tmp_path: Path) -> None:
    folder = own_work_dir(tmp_path / "new")
    assert folder.stat().st_mode & 0o777 == 0o711


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o777)
    assert main(["device", "--work-dir", str(tmp_path)]) == 2
    assert "others may write" in capsys.readouterr().err


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        own_work_dir(tmp_path)
