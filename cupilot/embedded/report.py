"""Reports of the stack: progress while it starts or stops, and its last known state on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from cupilot.embedded.folder import Folder, write_private


class PartState(StrEnum):
    """State of a part of the stack."""

    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    """A one-shot part that did its work."""
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """A part reached a state."""

    part: str
    state: PartState
    seconds: float
    """Since the supervisor began to start, or to stop, the stack."""
    note: str = ""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Endpoint:
    """Address of a stack's API and the key to it."""

    url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True)
class PartStatus:
    """A part of the stack as the supervisor sees it."""

    name: str
    state: PartState
    pid: int | None
    created: float | None
    """Unix time; tells the process from a later one of the same number."""
    restarts: int
    note: str = ""
    """Why it is not ready, where it is not."""


@dataclass(frozen=True)
class Status:
    """A stack as its supervisor last saw it."""

    running: bool
    ready: bool
    supervisor: int | None
    url: str | None
    target: str | None
    """``cuda`` or ``cpu``."""
    target_reason: str
    """Why this target."""
    parts: Sequence[PartStatus] = ()


NOT_RUNNING = Status(False, False, None, None, None, "")


def save_status(folder: Folder, status: Status) -> None:
    """Replace the folder's state file."""
    write_private(folder.state, json.dumps(asdict(status), indent=1))


def load_status(folder: Folder) -> Status:
    """Load the folder's state file; its supervisor may have ended since."""
    try:
        saved = json.loads(folder.state.read_text())
        parts = [PartStatus(**part | {"state": PartState(part["state"])}) for part in saved.pop("parts")]
        return Status(**saved, parts=parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # lost, cut off, or another release's
        return NOT_RUNNING
