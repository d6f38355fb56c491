"""The chart's query for KEDA, as it was rendered, on the real schema: what calls for a pod, and what does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, text, update

from cupilot.domain.problem import Target
from cupilot.domain.states import WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import GpuUsage, Team
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.jobs.steering import pause_job, resume_job
from cupilot.storage.operations.metrics import open_work
from cupilot.storage.operations.views import backlogs
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import QueueCounts, cluster_overview, register_worker
from cupilot.storage.queue.drains import SERVICE, begin_drain, drains, end_drain
from cupilot.storage.queue.steps import claim_step
from tests.service.box import Batches
from tests.service.doubles import device
from tests.service.rig import Rig
from tests.unit.deploy.rendering import of_kind
from workers.dispatcher import note_missing

pytestmark = pytest.mark.service

CARDS, AGENTS = "cupilot-worker-h200", "cupilot-agents"


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def query(role: str) -> str:
    """Return the SQL by which KEDA scales a role."""
    scaled = of_kind("everything", "ScaledObject")[role]
    return str(scaled["spec"]["triggers"][0]["metadata"]["query"])


def wanted(rig: Rig, role: str = CARDS) -> int:
    """Return KEDA's metrics, after the scheduler has looked."""
    note_missing(rig.database)
    with rig.database.transaction() as session:
        return int(session.execute(text(query(role))).scalar_one())


def waits(rig: Rig) -> bool:
    """Return whether the metric behind CupilotWorkNotTaken shows a step for a card."""
    note_missing(rig.database)
    with rig.database.transaction() as session:
        return open_work(session).queues["gpu.cuda"].oldest_seconds > 0


def submit(rig: Rig) -> uuid.UUID:
    return rig.submit(target=Target.CUDA)


def limit(rig: Rig, **limits: float) -> uuid.UUID:
    with rig.database.transaction() as session:
        blue = ensure_team(session, "blue")
        session.execute(update(Team).where(Team.id == blue.id).values(limits))
        return blue.id


def claim(rig: Rig, job: uuid.UUID) -> None:
    """Of the job's first step, by a card."""
    gpu = device(Target.CUDA, "sm_90")
    with rig.database.transaction() as session:
        register_worker(session, "gpu-2", WorkerKind.GPU, queues=["gpu.sm_90"], slots=1, version="t", device=gpu)
    rig.publish()
    step = rig.step(job, "prepare")
    with rig.database.transaction() as session:
        assert claim_step(session, step.id, step.attempt, "gpu-2", timedelta(seconds=30)) is not None


def test_both_kinds_of_workers_are_scaled_by_the_same_query() -> None:
    assert set(of_kind("everything", "ScaledObject")) == {CARDS, AGENTS}
    assert query(CARDS).replace("'gpu.sm_90', 'gpu.cuda'", "") == query(AGENTS).replace("'agents', 'agents.llm'", "")


def test_steps_that_wait_and_steps_that_run_are_counted(rig: Rig) -> None:
    assert wanted(rig) == 0
    first = submit(rig)
    assert wanted(rig) == 1, "although no worker lives that could take it"
    submit(rig)
    assert (wanted(rig), wanted(rig, AGENTS)) == (2, 0)
    claim(rig, first)
    assert wanted(rig) == 2


def test_a_paused_job_calls_for_no_pod_until_it_is_resumed(rig: Rig) -> None:
    job = submit(rig)
    blue = rig.job(job).team_id
    with rig.database.transaction() as session:
        pause_job(session, blue, job, "ann")
    assert wanted(rig) == 0
    with rig.database.transaction() as session:
        resume_job(session, blue, job, "ann")
    assert wanted(rig) == 1


def test_a_job_beyond_the_teams_running_jobs_calls_for_no_pod(rig: Rig) -> None:
    limit(rig, max_running_jobs=1)
    for _ in range(3):
        submit(rig)
    assert wanted(rig) == 1
    limit(rig, max_running_jobs=2)
    assert wanted(rig) == 2


def test_a_job_of_a_team_without_gpu_seconds_calls_for_no_pod(rig: Rig) -> None:
    blue = limit(rig, gpu_seconds=10.0)
    job = submit(rig)
    assert wanted(rig) == 1
    with rig.database.transaction() as session:
        session.add(GpuUsage(job_id=job, team_id=blue, day=func.current_date(), seconds=10.0))
    assert wanted(rig) == 0


def test_a_step_that_waits_for_a_word_or_a_quota_is_not_taken_for_neglected(rig: Rig) -> None:
    job = submit(rig)
    blue = rig.job(job).team_id
    assert waits(rig)
    with rig.database.transaction() as session:
        pause_job(session, blue, job, "ann")
    assert not waits(rig)
    with rig.database.transaction() as session:
        resume_job(session, blue, job, "ann")
    assert waits(rig)
    limit(rig, gpu_seconds=0.0)
    assert not waits(rig)
    limit(rig, gpu_seconds=10.0, max_running_jobs=0)
    assert not waits(rig)
    limit(rig, max_running_jobs=1)
    assert waits(rig)
    with rig.database.transaction() as session:
        begin_drain(session, SERVICE, "forgotten")
    assert waits(rig), "somebody has to be told of a drain that was forgotten"
    with rig.database.transaction() as session:
        end_drain(session, SERVICE)
        session.execute(update(Job).values(cancel_requested_at=func.now()))
    assert not waits(rig)


def test_while_the_service_is_drained_only_what_runs_keeps_its_pod(rig: Rig) -> None:
    running = submit(rig)
    claim(rig, running)
    submit(rig)
    with rig.database.transaction() as session:
        begin_drain(session, SERVICE, "upgrade")
    assert wanted(rig) == 1
    with rig.database.transaction() as session:
        end_drain(session, SERVICE)
    assert wanted(rig) == 2


@pytest.mark.parametrize("stopped", [pause_job, request_cancel])
def test_a_step_that_runs_keeps_its_pod_whatever_becomes_of_its_job(rig: Rig, stopped: Callable[..., object]) -> None:
    job = submit(rig)
    blue = rig.job(job).team_id
    claim(rig, job)
    with rig.database.transaction() as session:
        stopped(session, blue, job, *(["ann"] if stopped is pause_job else []))
    assert wanted(rig) == 1


def test_what_a_batch_holds_calls_for_no_pod_and_blocks_no_drain(rig: Rig, tmp_path: Path) -> None:
    submit(rig)
    Batches.of(rig).export(tmp_path, target=Target.CUDA, arch="sm_90")
    with rig.database.transaction() as session:
        begin_drain(session, SERVICE, "upgrade")
        [drain] = drains(session)
        assert (drain.running, open_work(session).queues["gpu.cuda"].running) == (0, 0)
        assert cluster_overview(session).queues == {"gpu.cuda": QueueCounts(in_batches=1)}
        [backlog] = backlogs(session)
        assert (backlog.running, backlog.in_batches) == (0, 1)
        end_drain(session, SERVICE)
    assert wanted(rig) == 0
