"""A worker that lacks descriptors, memory or disk fails one step, says why, and serves no more; the queue moves on."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from sqlalchemy import select, update

import workers.steps
import workers.tasks
from cupilot.domain.errors import Unavailable
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables import jobs as tables
from cupilot.storage.db.tables.queue import WorkerRow
from cupilot.storage.queue.cluster import live_workers
from tests.service.rig import Rig
from workers.exhaustion import lack_of
from workers.handlers.registry import HANDLERS

pytestmark = pytest.mark.service


def chained(cause: BaseException) -> Exception:
    """As a library hides what it failed for."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise ValueError("cannot connect") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "LimitNOFILE"),
        (chained(OSError(errno.ENFILE, "Too many open files in system")), "fs.file-max"),
        (MemoryError(), "without memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "CUPILOT_WORK_DIR"),
        (OSError(errno.EROFS, "Read-only file system"), "read-only"),
        (RuntimeError("can't start new thread"), "TasksMax"),
        (Unavailable("connection failed: Too many open files"), "LimitNOFILE"),
    ],
)
def test_what_a_worker_lacks_is_told_with_what_to_do(error: BaseException, said: str) -> None:
    lack = lack_of(error)
    assert lack is not None
    assert said in lack


@pytest.mark.parametrize(
    "error", [ValueError("no"), FileNotFoundError(errno.ENOENT, "gone"), BlockingIOError(errno.EAGAIN, "later")]
)
def test_other_errors_are_not_the_workers(error: Exception) -> None:
    assert lack_of(error) is None


def test_one_failure_takes_a_starved_worker_out_of_service_and_both_teams_jobs_end(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(database, settings)
    blue, red = rig.submit("blue"), rig.submit("red")
    initialise = HANDLERS[StepKind.INITIALISE]
    failures = 0

    def starved(*_: Any) -> Any:
        nonlocal failures
        failures += 1
        raise OSError(errno.EMFILE, "Too many open files")

    broken = {**HANDLERS, StepKind.INITIALISE: replace(initialise, work=starved)}
    with monkeypatch.context() as patched:
        patched.setattr(workers.steps, "HANDLERS", broken)
        rig.run()
    assert failures == 1, "nothing more is sent to it"
    with rig.database.transaction() as session:
        row = session.get_one(WorkerRow, "agent-1")
        assert not row.healthy
        assert "LimitNOFILE" in (row.note or "")
        assert "agent-1" not in {worker.name for worker in live_workers(session)}
        reasons = session.scalars(select(tables.Event.data).where(tables.Event.kind == "step.retried")).all()
    (reason,) = reasons
    assert reason["reason"] == "infrastructure"
    assert "ulimit -n" in reason["message"], "an operator can act on it"
    with rig.database.transaction() as session:  # its supervisor has started it again
        session.execute(update(WorkerRow).values(healthy=True, note=None))
    rig.tools = replace(rig.tools, retired=Event())
    for job in (blue, red):
        for step in rig.steps(job):
            rig.make_ready(step.id)
    rig.run()
    assert {rig.job(job).state for job in (blue, red)} == {JobState.SUCCEEDED}
    assert {step.state for job in (blue, red) for step in rig.steps(job)} == {StepState.SUCCEEDED}


def test_a_process_that_cannot_reach_the_database_for_lack_of_descriptors_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    workers.tasks._end_if_exhausted(Unavailable("the database does not answer"))
    assert ended == []
    error = Unavailable("the database does not answer")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    workers.tasks._end_if_exhausted(error)
    assert ended == [1]
