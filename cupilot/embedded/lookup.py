"""Read from a data folder whether its stack runs, its address and the state of its parts. Changes nothing.

Standard library only, so that ``cupilot doctor`` works where the client alone is installed.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cupilot.embedded.folder import Folder
from cupilot.embedded.report import Endpoint, PartState, Status, load_status

DEFAULT_DATA = Path(".cupilot")


def status(data: Path = DEFAULT_DATA) -> Status:
    """Return the state of a data folder's stack and of its parts."""
    folder = Folder(data.expanduser().resolve())
    saved = load_status(folder)
    alive = is_locked(folder)
    if not alive:  # whatever its last words were
        parts = [replace(part, state=PartState.STOPPED, note="") for part in saved.parts]
        return replace(saved, running=False, ready=False, url=None, parts=parts)
    return replace(saved, running=True)


def running(data: Path = DEFAULT_DATA) -> Endpoint | None:
    """Return where the stack of a data folder answers; None unless it runs and is ready."""
    folder = Folder(data.expanduser().resolve())
    with suppress(OSError):
        if is_locked(folder):
            return Endpoint(folder.url.read_text().strip(), folder.api_key.read_text().strip())
    return None


def is_locked(folder: Folder) -> bool:
    """Return whether a supervisor holds the folder."""
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
    pid = folder.lock.read_text() if is_locked(folder) else ""
    return int(pid) if pid else None
