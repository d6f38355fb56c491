"""A tick costs what is under way, not what waits: counted in rows that Postgres reads, not in seconds."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, insert, text, update

from cupilot.settings import Settings
from cupilot.storage.cluster import untaken_steps
from cupilot.storage.database import Database
from cupilot.storage.states import StepKind
from cupilot.storage.tables import Step, Team
from tests.service.rig import REDISPATCH, Rig
from workers.dispatcher import dispatch

pytestmark = pytest.mark.service

JOBS, STEPS = 10, 300
"""Jobs that wait, and the steps of each."""


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    found = Rig(database, settings)
    jobs = [found.submit(f"team {number % 3}") for number in range(JOBS)]
    with database.transaction() as session:
        rows = [
            {"id": uuid.uuid4(), "job_id": job, "key": f"more {n}", "kind": StepKind.PREPARE, "queue": "gpu.cpu"}
            for job in jobs
            for n in range(STEPS)
        ]
        session.execute(insert(Step), rows)
        session.execute(update(Team).values(max_running_jobs=JOBS))
    return found


@contextmanager
def rows_read(database: Database) -> Iterator[list[int]]:
    """How many rows of ``steps`` each statement that is sent meanwhile reads."""
    statements: list[tuple[str, Any]] = []
    counts: list[int] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if statement.startswith(("SELECT", "WITH")):
            statements.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield counts
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    with database.engine.connect() as connection:
        connection.execute(text("ANALYZE steps"))
        connection.execute(text("SET LOCAL enable_seqscan = off"))  # in a small table the planner would read it all
        for statement, parameters in statements:
            (plan,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).one()
            counts.append(_read(plan[0]["Plan"] if isinstance(plan, list) else json.loads(plan)[0]["Plan"]))
        connection.rollback()


def _read(node: dict[str, Any]) -> int:
    below = sum(_read(child) for child in node.get("Plans", []))
    if node.get("Relation Name") != "steps":
        return below
    each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return below + round(each * node["Actual Loops"])


def test_a_tick_reads_few_of_the_steps_that_wait(rig: Rig) -> None:
    first = rig.publish()
    assert len(first) == 2
    rig.do(first[0])
    with rows_read(rig.database) as counts:
        dispatch(rig.database, REDISPATCH)
    assert len(counts) > 5
    assert max(counts) <= 5 * JOBS, counts


def test_a_heartbeat_reads_none_of_them(rig: Rig) -> None:
    rig.publish()
    with rows_read(rig.database) as counts, rig.database.transaction() as session:
        assert len(untaken_steps(session, "gpu-1")) == 2
    assert max(counts) <= 10, counts
