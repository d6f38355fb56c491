"""The work folder of the command line. What lies in it is run and believed, so nobody else may write there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cupilot.domain.errors import InvalidInput

MODE = 0o711
"""Sandboxes of another user pass through it; only its owner may list it or write."""
_OTHERS_WRITE = 0o022


def default_work_dir() -> Path:
    """Return the work folder of this user where no other is given."""
    return Path(tempfile.gettempdir()) / f"cupilot-gpu-worker-{os.geteuid()}"


def own_work_dir(path: Path) -> Path:
    """Make the folder where it is missing; raises InvalidInput where somebody else owns it, or may write there."""
    path.mkdir(mode=MODE, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise InvalidInput(
            f"the work folder {path} belongs to another user, who could plant builds and results",
            hint="give a folder of your own: --work-dir FOLDER",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise InvalidInput(
            f"others may write in the work folder {path}, and could plant builds and results",
            hint=f"chmod go-w {path}, after a look at what lies there; or give another one: --work-dir FOLDER",
        )
    return path.resolve()
