"""Cost of a query in rows that Postgres reads: the same on every machine, other than seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, text

from cupilot.storage.db.engine import Database


@contextmanager
def rows_read(database: Database, table: str = "steps") -> Iterator[list[int]]:
    """Collect the rows of the table that each statement reads that is sent meanwhile."""
    statements: list[tuple[str, Any]] = []
    counts: list[int] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if statement.startswith(("SELECT", "WITH", "UPDATE")):
            statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield counts
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    with database.engine.connect() as connection:
        connection.execute(text("ANALYZE steps, jobs, strategies, events"))
        connection.execute(text("SET LOCAL enable_seqscan = off"))  # in a small table the planner would read it all
        for statement, parameters in statements:
            (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).one()
            counts.append(_read(plan[0]["Plan"] if isinstance(plan, list) else json.loads(plan)[0]["Plan"], table))
        connection.rollback()


def _read(node: dict[str, Any], table: str) -> int:
    below = sum(_read(child, table) for child in node.get("Plans", []))
    if node.get("Relation Name") != table or node["Node Type"] == "ModifyTable":
        return below
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return below + round(each * node["Actual Loops"])
