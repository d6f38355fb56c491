"""Writes a job's result where the user wants it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from uuid import UUID

from cupilot.errors import InvalidInput

DEFAULT_FOLDER = Path("cupilot-results")
MAX_BYTES = 64 * 2**20
"""Unpacked; a result has some hundred KB, and a server's zip is not trusted to be one."""


def write_result(archive: bytes, job: UUID, out: Path | None) -> Path:
    """Unpack a result into ``out`` or ``cupilot-results/<job>``, replacing files of the same names; the folder."""
    folder = out or DEFAULT_FOLDER / str(job)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            if sum(entry.file_size for entry in files.infolist()) > MAX_BYTES:
                raise InvalidInput("the result is too large to be one")
            for entry in files.infolist():
                if Path(entry.filename).name != entry.filename:
                    raise InvalidInput(f"the result holds a file with a path: {entry.filename!r}")
                (folder / entry.filename).write_bytes(files.read(entry))
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"cannot write the result to {folder}: {error}", where="--out") from error
    return folder
