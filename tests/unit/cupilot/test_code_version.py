"""The commit of the running code, read from a checkout of every form, or from the file of an image."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cupilot import __version__, code_version
from cupilot.code_version import commit_of


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


@pytest.fixture
def anew() -> Iterator[None]:
    code_version.code_version.cache_clear()
    yield
    code_version.code_version.cache_clear()


def test_the_commit_of_a_branch(checkout: Path) -> None:
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


def test_the_commit_of_packed_refs(checkout: Path) -> None:
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


def test_the_commit_of_a_detached_head(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "--detach")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("packed", [False, True])
def test_the_commit_of_a_linked_worktree(checkout: Path, tmp_path: Path, packed: bool) -> None:
    other = tmp_path / "other"
    git(checkout, "worktree", "add", "-q", "-b", "topic", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    if packed:
        git(checkout, "pack-refs", "--all")
    assert commit_of(other) == git(other, "rev-parse", "HEAD") != commit_of(checkout)


def test_a_folder_without_a_commit_has_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None


@pytest.mark.usefixtures("anew")
def test_an_image_names_the_commit_that_it_was_built_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_version, "ROOT", tmp_path)
    (tmp_path / code_version.COMMIT_FILE).write_text("a" * 40 + "\n")
    assert code_version.code_version() == "a" * 40


@pytest.mark.usefixtures("anew")
def test_a_stated_commit_counts_before_that_of_a_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files were copied over a checkout, its ``.git`` names another commit."""
    monkeypatch.setattr(code_version, "ROOT", checkout)
    assert code_version.code_version() == git(checkout, "rev-parse", "HEAD")
    code_version.code_version.cache_clear()
    (checkout / code_version.COMMIT_FILE).write_text("a" * 40 + "\n")
    assert code_version.code_version() == "a" * 40


@pytest.mark.usefixtures("anew")
def test_without_a_commit_the_version_of_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_version, "ROOT", tmp_path)
    (tmp_path / code_version.COMMIT_FILE).write_text("\n")  # an image built without the argument
    assert code_version.code_version() == __version__
