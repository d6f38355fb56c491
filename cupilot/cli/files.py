"""Write a job's result where the user wants it."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path, PurePosixPath
from uuid import UUID

from cupilot.domain.errors import InvalidInput

DEFAULT_FOLDER = Path("cupilot-results")
DEFAULT_EXPORTS = Path("cupilot-exports")
MAX_BYTES = 64 * 2**20
"""Unpacked; a result has some hundred KB, and a server's zip is not trusted to be one."""


def write_result(archive: bytes, job: UUID, out: Path | None) -> Path:
    """Unpack a result into ``out`` or ``cupilot-results/<job>``, replacing files; return the folder."""
    folder = out or DEFAULT_FOLDER / str(job)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            if sum(entry.file_size for entry in files.infolist()) > MAX_BYTES:
                raise InvalidInput("the archive is too large to be a result")
            for entry in files.infolist():
                if Path(entry.filename).name != entry.filename:
                    raise InvalidInput(f"the result holds a file with a path: {entry.filename!r}")
                (folder / entry.filename).write_bytes(files.read(entry))
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"cannot write the result to {folder}: {error}", where="--out") from error
    return folder


def export_folder(owner: str, form: str, *which: str | None) -> Path:
    """Return ``cupilot-exports/<owner>/<form>``, with which of several it is: no two exports share a folder."""
    return DEFAULT_EXPORTS / owner / "-".join([form, *(re.sub(r"[^\w.]+", "_", part) for part in which if part)])


def write_export(archive: bytes, folder: Path) -> list[str]:
    """Unpack an export with its folders, replacing files; return its files."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            entries = files.infolist()
            if sum(entry.file_size for entry in entries) > MAX_BYTES:
                raise InvalidInput("the archive is too large to be an export")
            for entry in entries:
                if not _stays_inside(entry.filename):
                    raise InvalidInput(f"the export holds a file that would leave its folder: {entry.filename!r}")
            for entry in entries:
                place = folder / entry.filename
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(files.read(entry))
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"cannot write the export to {folder}: {error}", where="--out") from error
    return [entry.filename for entry in entries]


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
