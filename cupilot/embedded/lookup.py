"""Read from a data folder whether its stack runs, its address and the state of its parts. Changes nothing.

Standard library only, so that ``cupilot doctor`` works where the client alone is installed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cupilot.embedded.folder import Folder
from cupilot.embedded.report import Endpoint, PartState, PartStatus, Status, load_status

DEFAULT_DATA = Path(".cupilot")
STACK = "stack"
"""Purpose of a supervisor, which holds the folder for its stack."""
ENDED = "its process has ended, and the state file was not written since (is the disk full, or the folder read-only?)"


def status(data: Path = DEFAULT_DATA) -> Status:
    """Return the state of a data folder's stack and of its parts, as it was last written and as processes are now: a
    full disk keeps the file as it was."""
    folder = Folder(data.expanduser().resolve())
    saved = load_status(folder)
    if supervisor_pid(folder) is None:  # whatever its last words were
        parts = [replace(part, state=PartState.STOPPED, note="") for part in saved.parts]
        return replace(saved, running=False, ready=False, url=None, parts=parts)
    parts = [part if _is_there(part) else replace(part, state=PartState.RESTARTING, note=ENDED) for part in saved.parts]
    return replace(saved, running=True, ready=saved.ready and parts == list(saved.parts), parts=parts)


def _is_there(part: PartStatus) -> bool:
    """Return whether a part that was said to be ready still has its process."""
    if part.state is not PartState.READY or part.pid is None:
        return True
    with suppress(PermissionError):
        try:
            os.kill(part.pid, 0)
        except ProcessLookupError:
            return False
    return True


def running(data: Path = DEFAULT_DATA) -> Endpoint | None:
    """Return where the stack of a data folder answers; None unless it runs and is ready."""
    folder = Folder(data.expanduser().resolve())
    with suppress(OSError):
        if supervisor_pid(folder) is not None:
            return Endpoint(folder.url.read_text().strip(), folder.api_key.read_text().strip())
    return None


class Holder(NamedTuple):
    """The process that holds a data folder, and what for."""

    pid: int
    purpose: str
    """:data:`STACK`, or a command that starts the folder's Postgres for itself: ``backup`` or ``restore``."""


def holder(folder: Folder) -> Holder | None:
    """Return who holds the folder; None where nobody does."""
    words = folder.lock.read_text().split() if is_locked(folder) else []
    # A supervisor of an earlier release has written its number only.
    return Holder(int(words[0]), words[1] if words[1:] else STACK) if words else None


def is_locked(folder: Folder) -> bool:
    """Return whether a process holds the folder."""
    try:
        with folder.lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def supervisor_pid(folder: Folder) -> int | None:
    """Return the process id of the supervisor that holds the folder; None where none does."""
    held = holder(folder)
    return held.pid if held and held.purpose == STACK else None
