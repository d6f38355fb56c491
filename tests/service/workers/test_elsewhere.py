"""Work on another device: a step that failed on one is tried there, and results are confirmed there."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from sqlalchemy import func, update

from cupilot.domain.states import JobState, StepState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import Step, WorkerRow
from cupilot.storage.queue.cluster import mark_unhealthy, register_worker, unclaimed_steps
from cupilot.storage.queue.drains import begin_drain
from cupilot.storage.queue.steps import claim_step
from tests.service.doubles import device, strategy
from tests.service.rig import Rig
from workers.reaper import reap
from workers.steps import run_step

pytestmark = pytest.mark.service

HERE, ELSEWHERE = "device-0", "device-1"
"""The device of the worker gpu-1, and that of gpu-2."""


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings, [strategy("lost"), strategy("t1")])


def add_worker(rig: Rig, uid: str = ELSEWHERE, queue: str = "gpu.cpu") -> None:
    where = device(uid=uid)
    with rig.database.transaction() as session:
        register_worker(session, "gpu-2", WorkerKind.GPU, queues=[queue], slots=1, version="t", device=where)


def attempt_by(rig: Rig, step: Step, worker: str) -> Step:
    """Have a worker take the step's message; the step afterwards."""
    rig.make_ready(step.id)
    with rig.database.transaction() as session:
        session.execute(update(WorkerRow).values(heartbeat_at=func.now()))
        attempt = session.get_one(Step, step.id).attempt
    run_step(step.id, attempt, worker, rig.tools, lambda: False)
    with rig.database.transaction() as session:
        return session.get_one(Step, step.id)


def failed_on_gpu_1(rig: Rig) -> Step:
    """The evaluation of a kernel that always fails for the infrastructure's sake, after gpu-1 has tried it."""
    job_id = rig.submit()
    key = "c0/evaluate/0"
    rig.run_until(job_id, key)
    return attempt_by(rig, rig.step(job_id, key), "gpu-1")


def test_a_failed_step_is_left_to_another_device(rig: Rig) -> None:
    add_worker(rig)
    step = failed_on_gpu_1(rig)
    assert (step.attempt, step.avoids) == (1, HERE)
    left = attempt_by(rig, step, "gpu-1")
    assert (left.state, left.attempt, left.dispatched_at) == (StepState.QUEUED, 1, None)
    assert left.not_before is not None
    assert rig.judge.calls.count("evaluate lost") == 1
    again = attempt_by(rig, step, "gpu-2")
    assert (again.attempt, again.avoids) == (2, ELSEWHERE)
    assert attempt_by(rig, step, "gpu-1").attempt == 3, "the other one failed too, so it is this one's turn"


def test_a_step_of_a_worker_that_fell_silent_goes_to_another_device(rig: Rig) -> None:
    add_worker(rig)
    job_id = rig.submit()
    step = rig.step(job_id, "prepare")
    with rig.database.transaction() as session:
        assert claim_step(session, step.id, 0, "gpu-1", timedelta(seconds=30)) is not None
        gone = func.now() - timedelta(seconds=1)
        session.execute(update(Step).where(Step.id == step.id).values(lease_expires_at=gone))
    reap(rig.database)
    assert attempt_by(rig, step, "gpu-1").state is StepState.QUEUED
    assert attempt_by(rig, step, "gpu-2").state is StepState.SUCCEEDED


@pytest.mark.parametrize("alone", ["nobody", "same device", "another queue", "silent", "unhealthy", "drained"])
def test_the_same_device_tries_again_where_there_is_no_other(rig: Rig, alone: str) -> None:
    if alone != "nobody":
        add_worker(
            rig,
            uid=HERE if alone == "same device" else ELSEWHERE,
            queue="gpu.sm_90" if alone == "another queue" else "gpu.cpu",
        )
    step = failed_on_gpu_1(rig)
    rig.make_ready(step.id)
    with rig.database.transaction() as session:
        if alone == "silent":
            silent = update(WorkerRow).where(WorkerRow.name == "gpu-2")
            session.execute(silent.values(heartbeat_at=func.now() - timedelta(hours=1)))
        elif alone == "unhealthy":
            mark_unhealthy(session, "gpu-2", "lost")
        elif alone == "drained":
            begin_drain(session, "gpu-2", "upgrade")
    run_step(step.id, 1, "gpu-1", rig.tools, lambda: False)
    assert rig.judge.calls.count("evaluate lost") == 2


def test_a_worker_does_not_neglect_what_avoids_its_device(rig: Rig) -> None:
    add_worker(rig)
    step = failed_on_gpu_1(rig)
    with rig.database.transaction() as session:
        session.execute(update(Step).where(Step.id == step.id).values(dispatches=9))
        assert step.id not in unclaimed_steps(session, "gpu-1")
        assert unclaimed_steps(session, "gpu-2")[step.id] == 9


@pytest.fixture
def sound(database: Database, settings: Settings) -> Rig:
    """A rig all of whose kernels can be measured."""
    return Rig(database, settings, [strategy("t1"), strategy("t2")])


def confirmation(rig: Rig) -> tuple[uuid.UUID, Step]:
    """The confirmation of a kernel that was measured on gpu-1's device."""
    job_id = rig.submit()
    rig.run_until(job_id, "confirm/0")
    return job_id, rig.step(job_id, "confirm/0")


def test_a_time_is_confirmed_on_another_device(sound: Rig) -> None:
    rig = sound
    add_worker(rig)
    job_id, step = confirmation(rig)
    assert step.avoids == HERE
    assert attempt_by(rig, step, "gpu-1").attempt == 0
    assert attempt_by(rig, step, "gpu-2").state is StepState.SUCCEEDED
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_a_time_is_confirmed_on_the_same_device_where_there_is_no_other(sound: Rig) -> None:
    rig = sound
    job_id, step = confirmation(rig)
    assert attempt_by(rig, step, "gpu-1").state is StepState.SUCCEEDED
    assert rig.job(job_id).state is JobState.SUCCEEDED
