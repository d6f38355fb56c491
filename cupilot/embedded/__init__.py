"""The embedded stack: the real servers and roles as child processes under one data folder.

Nothing here is used in production, where the same roles run from images; only URLs differ.
"""

from cupilot.embedded.backups import addresses, backup, restore
from cupilot.embedded.lifecycle import down, running, status, up
from cupilot.embedded.report import Endpoint, PartState, PartStatus, Progress, Status

__all__ = [
    "Endpoint",
    "PartState",
    "PartStatus",
    "Progress",
    "Status",
    "addresses",
    "backup",
    "down",
    "restore",
    "running",
    "status",
    "up",
]
