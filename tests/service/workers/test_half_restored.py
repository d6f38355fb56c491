"""A database that is restored under running workers lacks tables for a while: their threads outlive it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from cupilot.domain.states import StepState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cluster import live_workers
from cupilot.storage.queue.steps import claim_step
from tests.service.processes import wait_until
from tests.service.rig import Rig
from workers.lease import Lease
from workers.presence import Presence, Worker

pytestmark = pytest.mark.service


@contextmanager
def lacking(database: Database, table: str) -> Iterator[None]:
    with database.transaction() as session:
        session.execute(text(f"ALTER TABLE {table} RENAME TO {table}_restored"))
    yield
    with database.transaction() as session:
        session.execute(text(f"ALTER TABLE {table}_restored RENAME TO {table}"))


def alive(database: Database) -> set[str]:
    with database.transaction() as session:
        return {worker.name for worker in live_workers(session)}


def test_a_worker_registers_once_its_table_is_there(
    database: Database, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker("agent-9", WorkerKind.AGENT, ["agents"], 1, None)
    presence = Presence(settings, database, worker, end_process=lambda: None, close_intake=lambda _: None)
    with lacking(database, "workers"):
        presence.start()
        presence.begin()
        wait_until(lambda: caplog.text.count("worker row not renewed") >= 2, "it tries again")
    wait_until(lambda: "agent-9" in alive(database), "it is registered")
    presence.end()


def test_a_lease_is_renewed_once_the_steps_are_there(
    database: Database, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(database, settings)
    job_id = rig.submit()
    _, (step_id, attempt), _ = rig.publish()[0]
    with database.transaction() as session:
        claim = claim_step(session, uuid.UUID(step_id), attempt, "gpu-1", timedelta(seconds=2))
    assert claim is not None
    with Lease(database, settings, [claim], threading.Event().is_set) as lease:
        with lacking(database, "steps"):
            wait_until(lambda: "lease not renewed" in caplog.text, "it tries")
        before = rig.step(job_id, "prepare").lease_expires_at
        wait_until(lambda: rig.step(job_id, "prepare").lease_expires_at != before, "it is renewed")
        assert not lease.of(claim).cancelled()
    assert rig.step(job_id, "prepare").state is StepState.RUNNING
