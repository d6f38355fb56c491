"""Pack results as a verifiable zip: equal files make equal bytes, and ``SHA256SUMS`` lists each file's digest."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

EPOCH = (1980, 1, 1, 0, 0, 0)
"""Zip's earliest date: the time of packing says nothing."""

SUMS = "SHA256SUMS"
"""``sha256sum --check SHA256SUMS`` reads it."""


def packed(files: Mapping[str, str | bytes]) -> bytes:
    """Return a zip of files by path, in the order of their names; text is UTF-8."""
    raw = {path: data.encode() if isinstance(data, str) else data for path, data in sorted(files.items())}
    raw[SUMS] = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in raw.items()).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in raw.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
