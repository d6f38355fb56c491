"""Bound the stack's log files: a full one becomes ``NAME.log.1`` and starts again.

Children append to their files themselves, so that their last words survive the supervisor; hence copy and truncate. A
line written between the two is lost.
"""

from __future__ import annotations

import os
import shutil

from cupilot.embedded.folder import Folder

MAX_BYTES = 5_000_000


def bound_logs(folder: Folder, max_bytes: int = MAX_BYTES) -> None:
    """Turn over each log file that is longer than ``max_bytes``."""
    for log in (folder.root / "logs").glob("*.log"):
        if log.stat().st_size > max_bytes:
            shutil.copyfile(log, log.with_name(log.name + ".1"))
            os.truncate(log, 0)
