"""Pause, resume, cancel, retry, fork while the workers that hold the jobs' steps are killed: everything ends once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from cupilot.domain.states import JobState, StepState
from cupilot.jobs.continuing import fork_job, retry_job
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs import steering
from cupilot.storage.jobs.jobs import job_spec, request_cancel, submit_job
from cupilot.storage.people.teams import ensure_team
from tests.service import rig
from tests.service.processes import Processes, wait_until

pytestmark = pytest.mark.service

SLOW = {"CUPILOT_TEST_SLOW": "0.4"}


class Steered:
    """One team's jobs on real workers."""

    def __init__(self, processes: Processes, database: Database) -> None:
        self.processes = processes
        self.database = database
        with database.transaction() as session:
            self.team = ensure_team(session, "blue").id

    def submit(self) -> uuid.UUID:
        with self.database.transaction() as session:
            job, _ = submit_job(session, self.team, rig.job_spec(), idempotency_key=None, request_hash="0")
            return job.id

    def pause(self, job_id: uuid.UUID) -> None:
        with self.database.transaction() as session:
            steering.pause_job(session, self.team, job_id, "ann")

    def resume(self, job_id: uuid.UUID) -> None:
        with self.database.transaction() as session:
            steering.resume_job(session, self.team, job_id, "ann")

    def cancel(self, job_id: uuid.UUID) -> None:
        with self.database.transaction() as session:
            request_cancel(session, self.team, job_id)

    def fork(self, job_id: uuid.UUID, candidate: str) -> uuid.UUID:
        with self.database.transaction() as session:
            spec = job_spec(session, session.get_one(Job, job_id))
            told = {"author": "ann", "idempotency_key": None, "request_hash": "f"}
            return fork_job(session, self.team, job_id, candidate, spec, **told)[0].id  # type: ignore[arg-type]

    def retry(self, job_id: uuid.UUID) -> uuid.UUID:
        with self.database.transaction() as session:
            spec = job_spec(session, session.get_one(Job, job_id))
            told = {"author": "ann", "idempotency_key": None, "request_hash": "r"}
            return retry_job(session, self.team, job_id, spec, **told)[0].id  # type: ignore[arg-type]

    def state(self, job_id: uuid.UUID) -> JobState:
        with self.database.transaction() as session:
            return session.get_one(Job, job_id).state

    def steps(self, job_id: uuid.UUID) -> list[Step]:
        with self.database.transaction() as session:
            return list(session.scalars(select(Step).where(Step.job_id == job_id)))

    def wait_running(self, job_id: uuid.UUID, key: str) -> None:
        def holds() -> bool:
            return any(step.key.startswith(key) and step.state is StepState.RUNNING for step in self.steps(job_id))

        wait_until(holds, lambda: f"{key} runs; {self.processes.log()}")

    def wait_for(self, job_id: uuid.UUID, state: JobState) -> None:
        wait_until(lambda: self.state(job_id).final, lambda: f"the job ends; {self.processes.log()}")
        assert self.state(job_id) is state

    def assert_ended_once(self, *job_ids: uuid.UUID) -> None:
        """Each job has one end, each step one, and no step's result counts twice."""
        for job_id in job_ids:
            assert all(step.finished_at is not None for step in self.steps(job_id))
            with self.database.transaction() as session:
                told = session.execute(select(Event.kind, Event.step_id).where(Event.job_id == job_id)).all()
            assert sum(kind == f"job.{self.state(job_id).value}" for kind, _ in told) == 1
            ends = Counter(step for kind, step in told if kind == "step.succeeded")
            assert max(ends.values()) == 1


@pytest.fixture
def steered(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Steered]:
    running = Processes(settings, database, tmp_path)
    running.start_all(**SLOW)
    yield Steered(running, database)
    running.stop()


def test_a_paused_job_whose_step_is_killed_waits_and_goes_on(steered: Steered) -> None:
    """The step comes back to the paused job and is not handed out; a fork runs meanwhile; the resume does it again."""
    paused = steered.submit()
    steered.wait_running(paused, "c1/evaluate/0")
    steered.pause(paused)
    steered.processes.kill("gpu")
    steered.processes.worker("gpu", "gpu-second", **SLOW)
    wait_until(lambda: all(step.state is not StepState.RUNNING for step in steered.steps(paused)), "its lease is over")
    fork = steered.fork(paused, "0")
    steered.wait_for(fork, JobState.SUCCEEDED)
    assert steered.state(paused) is JobState.PAUSED
    [cut] = [step for step in steered.steps(paused) if step.key == "c1/evaluate/0"]
    assert cut.state is StepState.QUEUED, "nobody took it while the job was paused"
    steered.resume(paused)
    steered.wait_running(paused, "c")
    steered.processes.kill("agent")
    steered.processes.worker("agent", "agent-second", **SLOW)
    steered.wait_for(paused, JobState.SUCCEEDED)
    [done] = [step for step in steered.steps(paused) if step.key == "c1/evaluate/0"]
    assert (done.state, done.attempt) == (StepState.SUCCEEDED, cut.attempt + 1)
    steered.assert_ended_once(paused, fork)


def test_a_cancelled_job_whose_worker_is_killed_ends_once_and_is_retried(steered: Steered) -> None:
    cancelled = steered.submit()
    steered.wait_running(cancelled, "c2/evaluate/0")
    steered.cancel(cancelled)
    steered.processes.kill("gpu")
    steered.cancel(cancelled)  # nobody is left who could hear it
    steered.wait_for(cancelled, JobState.CANCELLED)
    retry = steered.retry(cancelled)
    steered.processes.worker("gpu", "gpu-second", **SLOW)
    steered.wait_running(retry, "c0/evaluate/0")
    for child in steered.processes.children("gpu-second"):
        child.kill()
    steered.wait_for(retry, JobState.SUCCEEDED)
    steered.assert_ended_once(cancelled, retry)
