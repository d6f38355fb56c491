"""Recognise that this machine or process has run out of something without which no step can be done here.

Such a failure says nothing about the step. The next one would fail as well, so a worker ends itself after the first and
is started again; what to do about the cause is said in its row, in the step's event and in the log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

_LACKS = {
    errno.EMFILE: "has no file descriptors left: raise its limit (ulimit -n, LimitNOFILE, nofile)",
    errno.ENFILE: "is on a machine without file descriptors: raise fs.file-max, or move other programs away",
    errno.ENOMEM: "is on a machine without memory: give it more, or run fewer workers there",
    errno.EAGAIN: "cannot start a process or thread: raise the limit of processes (ulimit -u, TasksMax, pids)",
    errno.ENOSPC: "has no room on its disk: make room, or move its folder with CUPILOT_WORK_DIR",
    errno.EDQUOT: "has used its quota of the disk: make room, or move its folder with CUPILOT_WORK_DIR",
    errno.EROFS: "cannot write its folder, which is read-only: remount it, or move it with CUPILOT_WORK_DIR",
}
_TEXTS = {
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
    "can't start new thread": errno.EAGAIN,
}
"""Libraries that report a failed call do it with its text alone."""


def lack_of(error: BaseException) -> str | None:
    """Return what a worker lacks, as the end of a sentence about it; None where the error has another cause."""
    for cause in _causes(error):
        number = _number(cause)
        if number in _LACKS:
            return _LACKS[number]
    return None


def _number(error: BaseException) -> int | None:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    # Not EAGAIN as such: sockets without data say the same.
    if isinstance(error, OSError) and error.errno not in (None, errno.EAGAIN):
        return error.errno
    return next((number for text, number in _TEXTS.items() if text in str(error)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
