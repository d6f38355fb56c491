"""User ids of sandboxed programs, and the folders that they are lent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_worker.sandbox import private_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_ids_are_no_user_s() -> None:
    drawn = {private_user.draw() for _ in range(100)}
    assert private_user.group() not in drawn
    assert min(drawn) > 61184
    assert len(drawn) > 80


def test_a_container_with_few_ids_has_few_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_user, "_mapped", lambda *_: False)
    private_user._ids.cache_clear()
    try:
        assert 61184 < private_user.draw() < 65520
    finally:
        private_user._ids.cache_clear()


@needs_root
def test_folders_are_lent_and_taken_back(tmp_path: Path) -> None:
    folder, secret = tmp_path / "folder", tmp_path / "secret"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_text("x")
    secret.write_text("x")
    (folder / "link").symlink_to(secret)
    user = private_user.draw()
    private_user.lend([folder], user)
    assert {owner(folder), owner(folder / "inner"), owner(folder / "inner" / "file")} == {user}
    assert owner(secret) == 0
    private_user.take_back([folder], user)
    assert {owner(folder), owner(folder / "inner"), owner(folder / "inner" / "file")} == {0}


@needs_root
def test_what_a_hostile_program_leaves_reaches_nothing_outside(tmp_path: Path) -> None:
    folder, secret, shadow = tmp_path / "folder", tmp_path / "secret", tmp_path / "shadow"
    folder.mkdir()
    secret.write_text("x")
    shadow.mkdir()
    secret.chmod(0o600)
    user = private_user.draw()
    private_user.lend([folder], user)
    os.link(secret, folder / "hard")
    (folder / "soft").symlink_to(secret)
    (folder / "folder").symlink_to(shadow)
    os.mkfifo(folder / "pipe")
    program = folder / "program"
    program.write_text("x")
    os.chown(program, user, 0)
    program.chmod(0o6755)
    os.chown(secret, user, 0)  # even if it belonged to the program
    private_user.take_back([folder], user)
    assert owner(secret) == user
    assert secret.stat().st_mode & 0o777 == 0o600
    assert owner(program) == 0
    assert program.stat().st_mode & 0o7000 == 0
    assert shadow.stat().st_gid == os.getgid()


@needs_root
def test_a_private_folder_is_shared_with_sandboxed_programs_only(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("x")
    (folder / "file").chmod(0o600)
    private_user.share(folder)
    for path, mode in ((folder, 0o750), (folder / "file", 0o640)):
        assert path.stat().st_gid == private_user.group()
        assert path.stat().st_mode & 0o777 == mode


def test_folders_that_others_cannot_reach(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    assert private_user.unreachable(inner)
    assert not private_user.unreachable(Path("/usr/bin/env"))
