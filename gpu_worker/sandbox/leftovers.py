"""Takes files from, and removes, folders that a sandboxed program could write: links, pipes, trees of any depth."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path

_NO_TRAP = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Neither a link nor a pipe may lead, or hold up, whoever opens a path."""


def take_file(path: Path, into: Path, most_bytes: int) -> bool:
    """Copy a file that a program left, if it is a plain file of one name and at most this size; whether it was."""
    try:
        descriptor = os.open(path, _NO_TRAP)
    except OSError:
        return False
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > most_bytes:
        os.close(descriptor)
        return False
    with os.fdopen(descriptor, "rb") as source, into.open("xb") as target:
        shutil.copyfileobj(source, target)
    return True


def remove_tree(path: Path) -> None:
    """Remove a folder and all beneath it, as far as this process may."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # rm has no limit of depth
        with contextlib.suppress(OSError):
            subprocess.run(["/bin/rm", "-rf", "--", str(path)], check=False, capture_output=True)
