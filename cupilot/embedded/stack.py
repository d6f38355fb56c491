"""The functions of the embedded stack in one place, for the command line, benchmarks and tests."""

from cupilot.embedded.backups import addresses, backup, restore
from cupilot.embedded.lifecycle import down, up
from cupilot.embedded.lookup import running, status, supervisor_pid
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
    "supervisor_pid",
    "up",
]
