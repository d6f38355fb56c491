"""A worker one of whose processes hangs ends itself, says why, and its queue moves on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.states import JobState, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step, WorkerRow
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from tests.service.processes import Processes, wait_until
from tests.service.rig import job_spec

pytestmark = pytest.mark.service


@pytest.fixture
def processes(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Processes]:
    running = Processes(settings, database, tmp_path)
    yield running
    running.stop()


def submit(database: Database, team: str) -> uuid.UUID:
    with database.transaction() as session:
        spec = job_spec(method=SceConfig(population=2, generations=1, elites=1))
        job, _ = submit_job(session, ensure_team(session, team).id, spec, idempotency_key=None, request_hash="0")
        return job.id


def state_of(database: Database, job: uuid.UUID) -> JobState:
    with database.transaction() as session:
        return session.get_one(Job, job).state


def prepares(database: Database) -> bool:
    with database.transaction() as session:
        query = select(Step).where(Step.key == "prepare", Step.state == StepState.RUNNING, Step.lease_owner == "gpu")
        return session.scalars(query).first() is not None


def note_of(database: Database, worker: str) -> str:
    with database.transaction() as session:
        row = session.get(WorkerRow, worker)
        return (row.note or "") if row else ""


def test_a_worker_whose_process_hangs_ends_and_both_teams_jobs_go_on(processes: Processes, database: Database) -> None:
    processes.start_all(CUPILOT_TEST_SLOW="600")
    jobs = [submit(database, "blue"), submit(database, "red")]
    wait_until(lambda: prepares(database), processes.log)
    (child,) = processes.children("gpu")
    child.suspend()  # it neither works nor renews its lease, nor can it be told to stop
    wait_until(lambda: "hangs" in note_of(database, "gpu"), lambda: f"the worker says so; {processes.log()}")
    processes.wait_gone("gpu")
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it goes with its parent")
    processes.worker("gpu", "gpu-again")  # as its supervisor does
    for job in jobs:
        wait_until(lambda job=job: state_of(database, job).final, lambda: f"the job ends; {processes.log()}")
    assert {state_of(database, job) for job in jobs} == {JobState.SUCCEEDED}
