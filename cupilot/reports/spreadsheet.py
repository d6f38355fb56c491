"""Write the report's tables as CSV (RFC 4180), one table a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from cupilot.domain.evaluation import Interval
from cupilot.schemas import ExperimentReport

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet takes for a formula (OWASP, CSV injection)."""


class Table(StrEnum):
    """Names of the report's tables."""

    ARMS = "arms"
    CELLS = "cells"
    COMPARISONS = "comparisons"
    CONVERGENCE = "convergence"
    JOBS = "jobs"


def table(report: ExperimentReport, which: Table) -> str:
    """Return one table with its head.

    Intervals become columns, counts by name and lists JSON; what is unknown is blank.
    """
    rows: Mapping[Table, Sequence[Any]] = {
        Table.ARMS: report.arms,
        Table.CELLS: report.cells,
        Table.COMPARISONS: report.comparisons,
        Table.CONVERGENCE: report.convergence,
        Table.JOBS: report.outcomes,
    }
    flat = [_flat(row) for row in rows[which]]
    out = io.StringIO()
    if flat:
        writer = csv.DictWriter(out, fieldnames=list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    return out.getvalue()


def _flat(row: Any) -> dict[str, str]:
    cells: dict[str, str] = {}
    for name in type(row).model_fields:
        value = getattr(row, name)
        if _is_interval(row, name):
            prefix = "" if name == "interval" else f"{name.removesuffix('_interval')}_"
            cells[f"{prefix}ci_low"] = _cell(value.low if value else None)
            if name == "speedup":
                cells["speedup"] = _cell(value.median if value else None)
            cells[f"{prefix}ci_high"] = _cell(value.high if value else None)
        else:
            cells[name] = _cell(value)
    return cells


def _is_interval(row: Any, name: str) -> bool:
    return Interval in getattr(type(row).model_fields[name].annotation, "__args__", ())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | tuple | list):
        return json.dumps(value)
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text
