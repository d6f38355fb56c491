"""Read the warnings about jobs' problems without the rest of their preparations, which can be large."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, cast, func
from sqlalchemy.dialects.postgresql import JSONPATH

from cupilot.domain.caveats import problem_warnings
from cupilot.storage.db.json_columns import part
from cupilot.storage.db.tables.jobs import Job


def _of_workloads(path: str) -> ColumnElement[Any]:
    """Return what stands at a path in the part of each workload, in their order; nothing where there are none."""
    return func.jsonb_path_query_array(Job.preparation, cast(f"$.workloads[*].{path}", JSONPATH))


CAVEATS = (
    part(Job.preparation["laws"], tuple[str, ...]),
    func.coalesce(Job.preparation["host_bound"].astext, "false"),
    part(_of_workloads("workload.name"), tuple[str, ...]),
    part(_of_workloads("laws"), tuple[tuple[str, ...], ...]),
)
"""Columns that :func:`warnings_from` reads."""


def warnings_from(
    laws: tuple[str, ...], host_bound: str, names: tuple[str, ...], by_workload: tuple[tuple[str, ...], ...]
) -> list[str]:
    """Return :attr:`Preparation.warnings`, from the values of :data:`CAVEATS`."""
    workloads = dict(zip(names, by_workload, strict=True))
    return list(problem_warnings(laws, host_bound=host_bound == "true", workloads=workloads))
