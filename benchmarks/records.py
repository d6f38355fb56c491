"""Records of measurements: compact JSON with results, command, commit and machine.

The README and the pages state numbers of these records only. A record has at most 50 KB, one row a line, so that a diff
shows which rows changed; logs and raw output stay out of the repository. Lists of rows may be kept as tables, which
:func:`read` and :func:`load` give back as rows.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
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
_SPARSE = 1.4
"""Cells of a nested column over those with a value, up to which it is one."""
_TABLE = {"same", "columns", "rows"}


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
    """Return the record ``benchmarks/results/NAME.json``, its tables as rows."""
    return load(RESULTS / f"{name}.json")


def load(path: Path) -> dict[str, Any]:
    """Return the record in a file, its tables as rows."""
    record: dict[str, Any] = _expanded(json.loads(path.read_text(encoding="utf-8")))
    return record


def write(path: Path, record: Any, digits: int = _DIGITS, *, tables: bool = False) -> None:
    """Replace a record, its numbers rounded to so many digits; a reader never sees half of it.

    With ``tables``, lists of rows are written as tables where that is shorter.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    rounded = _rounded(record, digits)
    scratch.write_text(_text(_tabled(rounded) if tables else rounded) + "\n", encoding="utf-8")
    scratch.replace(path)


def _tabled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tabled(part) for key, part in value.items()}
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        return value
    rows = [_tabled(row) for row in value]
    table = _table(rows)
    return table if len(json.dumps(table)) < len(json.dumps(rows)) else rows


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return rows as a table: keys, and what is equal in all rows, stand there once.

    ``same`` holds what is equal in all rows. A column whose values have keys of their own is ``{name: columns}``.
    Under a name that ends with ``?``, null stands for a key that the row does not have.
    """
    same = {key: value for key, value in rows[0].items() if all(_equal(row, key, value) for row in rows)}
    varying = [{key: value for key, value in row.items() if key not in same} for row in rows]
    columns = _columns(varying)
    return {"same": same, "columns": columns, "rows": [_cells(row, columns) for row in varying]}


def _equal(row: dict[str, Any], key: str, value: Any) -> bool:
    return key in row and json.dumps(row[key]) == json.dumps(value)


def _columns(rows: Sequence[dict[str, Any]]) -> list[Any]:
    columns: list[Any] = []
    for key in _keys(rows):
        name = key if all(key in row for row in rows) else f"{key}?"
        values = [row[key] for row in rows if row.get(key) is not None]
        columns.append({name: _columns(values)} if _alike(values) else name)
    return columns


def _keys(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return all keys, in the order that they have in the rows."""
    keys: list[str] = []
    for row in rows:
        place = 0
        for key in row:
            if key not in keys:
                keys.insert(place, key)
            place = keys.index(key) + 1
    return keys


def _alike(values: Sequence[Any]) -> bool:
    """Return whether values are dictionaries that mostly have the same keys, and no tables."""
    if not values or not all(isinstance(value, dict) and set(value) != _TABLE for value in values):
        return False
    present = sum(map(len, values))
    return 0 < len(set().union(*values)) * len(values) <= present * _SPARSE


def _cells(row: dict[str, Any], columns: Sequence[Any]) -> list[Any]:
    cells = []
    for column in columns:
        name, parts = _column(column)
        value = row.get(name.removesuffix("?"))
        cells.append(_cells(value, parts) if parts and value is not None else value)
    return cells


def _row(cells: Sequence[Any], columns: Sequence[Any]) -> dict[str, Any]:
    row = {}
    for column, cell in zip(columns, cells, strict=True):
        name, parts = _column(column)
        if cell is not None or not name.endswith("?"):
            row[name.removesuffix("?")] = _row(cell, parts) if parts and cell is not None else _expanded(cell)
    return row


def _column(column: Any) -> tuple[str, list[Any]]:
    """Return a column's name, and the columns in it."""
    if isinstance(column, str):
        return column, []
    [(name, parts)] = column.items()
    return name, parts


def _expanded(value: Any) -> Any:
    if isinstance(value, list):
        return [_expanded(part) for part in value]
    if not isinstance(value, dict):
        return value
    if set(value) == _TABLE:
        same = _expanded(value["same"])
        return [{**same, **_row(cells, value["columns"])} for cells in value["rows"]]
    return {key: _expanded(part) for key, part in value.items()}


def _text(value: Any) -> str:
    whole = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(whole) <= _WIDTH or not isinstance(value, (dict, list)):
        return whole
    if isinstance(value, list):
        parts = [_text(part) for part in value]
        return "[\n" + ",\n".join(parts if isinstance(value[0], (dict, list)) else _filled(parts)) + "\n]"
    return "{\n" + ",\n".join(_filled([f"{json.dumps(key)}:{_text(value[key])}" for key in value])) + "\n}"


def _filled(parts: list[str]) -> list[str]:
    """Return lines of as many parts as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) < _WIDTH and "\n" not in lines[-1] + part:
            lines[-1] += f",{part}"
        else:
            lines.append(part)
    return lines


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: _rounded(part, digits) for key, part in value.items()}
    return [_rounded(part, digits) for part in value] if isinstance(value, (list, tuple)) else value
