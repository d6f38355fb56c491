"""Name the commit of the running code, without git: images and installed packages have none."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from cupilot import __version__

ROOT = Path(__file__).resolve().parents[1]
"""The checkout, or the part of it in an image; of an installed package the folder that holds it."""
COMMIT_FILE = "COMMIT"
"""File beside the code that names its commit; ``deploy/Dockerfile`` writes it, since an image holds no ``.git``. It
counts before ``.git``, which names another commit where the files were copied over a checkout."""
_HASH = re.compile(r"[0-9a-f]{40,64}")


@cache
def code_version() -> str:
    """Return the commit of the code; the package's version where it is not known."""
    return stated_commit(ROOT) or commit_of(ROOT) or __version__


def stated_commit(folder: Path) -> str | None:
    """Return the commit that the folder's file ``COMMIT`` names; None where there is none."""
    return _commit(_text(folder / COMMIT_FILE))


def commit_of(checkout: Path) -> str | None:
    """Return the commit that is checked out in a folder; None where it is no checkout, or has no commit yet."""
    git = checkout / ".git"
    linked = _text(git)
    if linked.startswith("gitdir: "):  # a linked worktree, or a submodule
        git = checkout / linked.removeprefix("gitdir: ")
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return _commit(head)
    ref = head.removeprefix("ref: ")
    shared = git / (_text(git / "commondir") or ".")
    return _commit(_text(git / ref)) or _commit(_text(shared / ref)) or _packed(shared, ref)


def _packed(git: Path, ref: str) -> str | None:
    for line in _text(git / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return _commit(commit)
    return None


def _commit(text: str) -> str | None:
    return text if _HASH.fullmatch(text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
