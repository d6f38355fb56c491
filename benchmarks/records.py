"""Records of measurements: compact JSON with results, command, commit and machine.

The README and the pages state numbers of these records only. A record has at most 50 KB, one row a line, so that a diff
shows which rows changed; logs and raw output stay out of the repository.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from cupilot.code_version import commit_of, stated_commit

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
MOST_BYTES = 50 * 1024
_WIDTH = 500
"""Characters of a line; what is longer is broken into its parts."""
_DIGITS = 7


def stamp() -> dict[str, Any]:
    """Return what every record begins with: command, commit, machine and time."""
    module = Path(sys.argv[0]).stem
    command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
    return {"command": command, "commit": commit(), "machine": machine(), "begun": now()}


def now() -> str:
    """Return the time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """Return the commit that the file ``COMMIT`` names, else that of the working tree.

    ``-dirty`` is added where the tree has changes; ``unknown`` where there is neither.
    """
    stated = stated_commit(ROOT)
    if stated is not None:
        return stated
    checked_out = commit_of(ROOT)
    if checked_out is None:
        return "unknown"
    unchanged = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, capture_output=True, check=False)
    return checked_out if unchanged.returncode == 0 else f"{checked_out}-dirty"


def read(name: str) -> dict[str, Any]:
    """Return the record ``benchmarks/results/NAME.json``."""
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def write(path: Path, record: Any) -> None:
    """Replace a record; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    scratch.write_text(_text(_rounded(record)) + "\n", encoding="utf-8")
    scratch.replace(path)


def _text(value: Any) -> str:
    whole = json.dumps(value, ensure_ascii=False)
    if len(whole) <= _WIDTH or not isinstance(value, (dict, list)):
        return whole
    if isinstance(value, list):
        parts = [_text(part) for part in value]
        return "[\n" + ",\n".join(parts if isinstance(value[0], (dict, list)) else _filled(parts)) + "\n]"
    return "{\n" + ",\n".join(_filled([f"{json.dumps(key)}: {_text(value[key])}" for key in value])) + "\n}"


def _filled(parts: list[str]) -> list[str]:
    """Return lines of as many parts as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) < _WIDTH and "\n" not in lines[-1] + part:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, (list, tuple)) else value
