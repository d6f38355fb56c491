"""Print a digest of what the rendered manifests are made of, so that a test sees when they are older than the chart."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).parent


def digest() -> str:
    """Return SHA-256 over every file of the chart and the examples."""
    total = hashlib.sha256()
    paths = [path for folder in ("cupilot", "examples") for path in (HERE / folder).rglob("*") if path.is_file()]
    for path in sorted(paths):
        total.update(f"{path.relative_to(HERE)}\n".encode() + path.read_bytes())
    return total.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(digest() + "\n")
