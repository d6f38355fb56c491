"""The result file on disk: grows by whole lines, each written through to the disk; one run at a time adds to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from uuid import UUID

from cupilot.domain.batches.errors import InvalidResultFile
from cupilot.domain.batches.files import BatchFile
from cupilot.domain.batches.results import (
    BatchRecord,
    Damaged,
    ResultHeader,
    read_header,
    read_record,
    write_header,
    write_record,
)
from cupilot.domain.errors import Conflict
from cupilot.domain.evaluation import Failure, FailureKind


class ResultInUse(Conflict):
    """Another run adds to the result file."""

    code = "result_in_use"


class ResultFile:
    """An opened result file of one batch; what an earlier run left in it counts."""

    def __init__(self, path: Path, batch: BatchFile) -> None:
        """Open or make the file; cut off a line that a run died in.

        Raises :class:`ResultInUse`, and :class:`InvalidResultFile` for a file of another batch.
        """
        self.path = path
        self._header = ResultHeader(batch=batch.manifest.batch, manifest=batch.digest, signature=batch.signature)
        self._entries = {entry.step: entry.content_hash() for entry in batch.manifest.steps}
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.done = self._recover()
            """Steps with a record."""
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def add(self, record: BatchRecord) -> BatchRecord:
        """Append a record; it is on the disk when this returns.

        Returns what was written: a failure in place of an answer that is too large for a line.
        """
        try:
            line = write_record(self._header, record)
        except Damaged as error:
            failure = Failure(kind=FailureKind.INFRASTRUCTURE, message=str(error))
            answers = {"preparation": None, "tracing": None, "evaluation": None, "failure": failure}
            record = record.model_copy(update=answers)
            line = write_record(self._header, record)
        self._append(line)
        self.done.add(record.step)
        return record

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultInUse(
                f"another run adds to {self.path}", hint="wait for it, or give this one another --output"
            ) from error

    def _recover(self) -> set[UUID]:
        with os.fdopen(os.dup(self._descriptor), "rb") as file:
            content = file.read()
        header = write_header(self._header)
        if header.encode().startswith(content):  # nothing yet, or a run died in its first line
            os.ftruncate(self._descriptor, 0)
            self._append(header)
            return set()
        lines = content.decode("utf-8", "replace").split("\n")
        if read_header(lines[0]) != self._header:
            raise InvalidResultFile(
                f"{self.path} holds results of another batch", hint="give another --output", where=str(self.path)
            )
        os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)
        return {step for step in map(self._step_of, lines[1:-1]) if step is not None}

    def _step_of(self, line: str) -> UUID | None:
        """Return the step of a record; None where the line is damaged, so that the step is judged again."""
        try:
            record = read_record(self._header, line)
        except Damaged:
            return None
        return record.step if self._entries.get(record.step) == record.entry else None

    def _append(self, line: str) -> None:
        data = memoryview(f"{line}\n".encode())
        while data:
            data = data[os.write(self._descriptor, data) :]
        os.fsync(self._descriptor)
