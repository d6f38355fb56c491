"""Errors of the embedded stack."""

from __future__ import annotations

from cupilot.domain.errors import Conflict, CupilotError, Unavailable


class StartFailed(Unavailable):
    """A part of the embedded stack did not come up; the hint is the end of its log."""

    code = "start_failed"


class AlreadyRunning(Conflict):
    """Another supervisor, backup or restore holds the data folder."""

    code = "stack_already_running"


class BackupFailed(CupilotError):
    """A dump could not be written, read or restored; the hint is what Postgres' own program said."""

    code = "backup_failed"
