"""The detached supervisor: ``python -m cupilot.embedded FOLDER OPTIONS``, started by ``up``.

Prints its process id, then one line of JSON for each progress until the stack is ready or has failed, then nothing.
Everything also goes to its standard error, a log file.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cupilot.domain.errors import CupilotError
from cupilot.embedded.folder import open_folder
from cupilot.embedded.lifecycle import Options, report_line, supervise
from cupilot.embedded.report import Progress


def main() -> int:
    """Run until told to stop, as nobody's child; exit code 1 when the stack does not come up."""
    if os.fork():
        os._exit(0)  # whoever started us waits for this one only
    _write_line(json.dumps({"pid": os.getpid()}))
    folder = open_folder(Path(sys.argv[1]))
    try:
        supervise(folder, Options.load(sys.argv[2]), _report)
    except CupilotError as error:
        _write_line(json.dumps({"error": error.message, "hint": error.hint}))
        return 1
    return 0


def _report(progress: Progress) -> None:
    _write_line(report_line(progress))
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {progress.part} {progress.state} {progress.note}\n")
    if progress.part == "stack":
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.close(nothing)


def _write_line(line: str) -> None:
    """Write a line to the process that started us; that process may be gone."""
    with suppress(BrokenPipeError):
        os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
