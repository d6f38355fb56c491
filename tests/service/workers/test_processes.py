"""Real Celery workers and schedulers, killed and stopped for real while a job runs."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.states import JobState, StepState
from cupilot.embedded.servers import Running, start_postgres, start_valkey
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event, Job
from cupilot.storage.db.tables.queue import CardLease, Step, WorkerRow
from cupilot.storage.jobs.jobs import request_cancel, submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import cluster_overview
from tests.living import still_running
from tests.service.processes import PATIENCE_SECONDS, Processes, wait_until
from tests.service.rig import job_spec

Answer = TypeVar("Answer")

pytestmark = pytest.mark.service

SLOW = {"CUPILOT_TEST_SLOW": "0.4"}
STUCK = {"CUPILOT_TEST_SLOW": "600"}


@pytest.fixture
def processes(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Processes]:
    running = Processes(settings, database, tmp_path)
    yield running
    running.stop()


def submit(database: Database) -> uuid.UUID:
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        spec = job_spec(method=SceConfig(population=2, generations=2, elites=1))
        job, _ = submit_job(session, team.id, spec, idempotency_key=None, request_hash="0")
        return job.id


def job(database: Database, job_id: uuid.UUID) -> Job:
    return _read(database, lambda session: session.get_one(Job, job_id))


def steps(database: Database, job_id: uuid.UUID) -> list[Step]:
    query = select(Step).where(Step.job_id == job_id).order_by(Step.created_at)
    return _read(database, lambda session: list(session.scalars(query)))


def _read(database: Database, question: Callable[[Session], Answer]) -> Answer:
    """Ask again while the database is away."""
    while True:
        try:
            with database.transaction() as session:
                return question(session)
        except Unavailable:
            time.sleep(0.1)


def finished(database: Database, job_id: uuid.UUID) -> int:
    return sum(step.finished_at is not None for step in steps(database, job_id))


def running(database: Database, job_id: uuid.UUID, key: str) -> bool:
    return any(step.key == key and step.state is StepState.RUNNING for step in steps(database, job_id))


def wait_for_end(processes: Processes, job_id: uuid.UUID) -> Job:
    wait_until(lambda: job(processes.database, job_id).state.final, lambda: f"the job's end; {processes.log()}")
    return job(processes.database, job_id)


def assert_done_once(database: Database, job_id: uuid.UUID) -> None:
    """Every step succeeded, and its result was stored once."""
    with database.transaction() as session:
        kinds = session.execute(select(Event.step_id, Event.kind).where(Event.job_id == job_id)).all()
    succeeded = Counter(step for step, kind in kinds if kind == "step.succeeded")
    assert set(succeeded.values()) == {1}
    assert {step.id for step in steps(database, job_id)} == set(succeeded)


def test_a_job_runs_through_real_workers(processes: Processes, database: Database) -> None:
    processes.start_all()
    job_id = submit(database)
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)
    assert all(step.attempt == 1 for step in steps(database, job_id))


def test_a_killed_gpu_worker(processes: Processes, database: Database) -> None:
    processes.start_all(**SLOW)
    job_id = submit(database)
    wait_until(lambda: running(database, job_id, "c1/evaluate/0"), processes.log)
    children = processes.children("gpu")
    processes.kill("gpu")
    assert still_running(children, PATIENCE_SECONDS) == [], "the children die with their parent"
    processes.worker("gpu", "gpu-again", **SLOW)
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)


def live(database: Database) -> set[str]:
    with database.transaction() as session:
        return {view.worker.name for view in cluster_overview(session).workers if view.live}


@pytest.mark.parametrize("end", [Processes.kill, Processes.ask_to_stop])
def test_a_second_worker_of_a_card_waits_for_the_first_ones_end(
    processes: Processes, database: Database, end: Callable[[Processes, str], None]
) -> None:
    processes.worker("gpu", "first", CUPILOT_TEST_CARD="GPU-0")
    processes.wait_for_workers("first")
    processes.worker("gpu", "second", CUPILOT_TEST_CARD="GPU-0")
    wait_until(lambda: "card_taken: card GPU-0 is held by worker first since" in processes.log(), processes.log)
    assert live(database) == {"first"}
    end(processes, "first")
    processes.wait_for_workers("second")


def test_a_worker_that_lost_its_card_ends(processes: Processes, database: Database) -> None:
    processes.worker("gpu", "first", CUPILOT_TEST_CARD="GPU-0")
    processes.wait_for_workers("first")

    def ends() -> bool:
        with database.transaction() as session:
            session.execute(update(CardLease).values(worker="another", expires_at=func.now() + timedelta(seconds=2)))
        return "this worker ends: card GPU-0 is held by worker another" in processes.log()

    wait_until(ends, processes.log)
    processes.wait_gone("first")
    assert live(database) == set()


def test_a_killed_pool_child(processes: Processes, database: Database) -> None:
    """A kernel may kill the process around it: the worker goes on with a new child."""
    processes.start_all(**SLOW)
    job_id = submit(database)
    wait_until(lambda: running(database, job_id, "c1/evaluate/0"), processes.log)
    for child in processes.children("gpu"):
        child.kill()
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)


def test_a_killed_scheduler(processes: Processes, database: Database) -> None:
    processes.start_all(**SLOW)
    job_id = submit(database)
    wait_until(lambda: finished(database, job_id) > 3, processes.log)
    processes.kill("scheduler")
    processes.scheduler("scheduler-again")
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)


STORM, SUBMITTERS, SCHEDULERS = 48, 6, 4


def test_schedulers_killed_in_a_storm_of_submissions(processes: Processes, database: Database) -> None:
    """Wherever in its tick a scheduler dies, no job is left, and no step is done twice."""
    processes.start_all(CUPILOT_TEST_SLOW="0.02")
    jobs: list[uuid.UUID] = []
    small = job_spec(method=SceConfig(population=2, generations=1, elites=1))

    def submit_many(number: int) -> None:
        for _ in range(STORM // SUBMITTERS):
            with database.transaction() as session:
                team = ensure_team(session, f"storm {number % 3}")
                new, _ = submit_job(session, team.id, small, idempotency_key=None, request_hash="0")
            jobs.append(new.id)

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        storm = [pool.submit(submit_many, number) for number in range(SUBMITTERS)]
        name = "scheduler"
        for count in range(SCHEDULERS):
            wait_until(lambda: len(jobs) >= STORM * count // SCHEDULERS, processes.log())  # noqa: B023
            processes.kill(name)
            name = f"scheduler-{count}"
            processes.scheduler(name)
        for each in storm:
            each.result()
    ends = {wait_for_end(processes, job_id).state for job_id in jobs}
    assert len(jobs) == STORM
    assert ends == {JobState.SUCCEEDED}
    for job_id in jobs:
        assert_done_once(database, job_id)


def test_a_standby_scheduler_takes_over(processes: Processes, database: Database) -> None:
    processes.start_all(**SLOW)
    processes.scheduler("standby")
    job_id = submit(database)
    wait_until(lambda: finished(database, job_id) > 3, processes.log)
    processes.kill("scheduler")
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    with database.transaction() as session:
        assert cluster_overview(session).scheduler_alive
    assert processes.log().count("workers.scheduler in charge") == 2, "of each it can be seen since when"
    assert_done_once(database, job_id)


def test_a_flushed_broker(processes: Processes, database: Database, valkey: Running) -> None:
    processes.start_all(**SLOW)
    job_id = submit(database)
    with redis.Redis.from_url(valkey.url) as broker:
        for count in (2, 6, 10):
            wait_until(lambda count=count: finished(database, job_id) > count, processes.log)
            broker.flushall()
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)


def test_a_killed_broker(processes: Processes, database: Database, valkey: Running) -> None:
    processes.start_all(**SLOW)
    job_id = submit(database)
    wait_until(lambda: finished(database, job_id) > 4, processes.log)
    valkey.kill()
    data = valkey.server.folder.root
    again = start_valkey(data)
    valkey.server, valkey.process = again.server, again.process
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)


def test_a_killed_database(processes: Processes, database: Database, postgres: Running) -> None:
    """Nobody gives up: the scheduler takes its lock again, results wait until they can be stored."""
    processes.start_all(**SLOW)
    job_id = submit(database)
    wait_until(lambda: finished(database, job_id) > 4, processes.log)
    postgres.kill()
    again = start_postgres(postgres.server.folder.root)
    postgres.server, postgres.process = again.server, again.process
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED
    assert_done_once(database, job_id)
    processes.wait_for_workers("agent", "gpu")


def test_a_worker_that_takes_no_work_ends_itself(processes: Processes, database: Database) -> None:
    """As if its consumer hung: steps are sent again and again and not taken."""
    processes.start_all()
    with database.transaction() as session:
        session.execute(update(WorkerRow).where(WorkerRow.name == "gpu").values(queues=["gpu.other"]))
    job_id = submit(database)
    with database.transaction() as session:
        session.execute(update(Step).where(Step.job_id == job_id).values(queue="gpu.other"))
    assert processes.wait_gone("gpu") == 0, processes.log()
    assert steps(database, job_id)[0].state is StepState.QUEUED
    processes.worker("gpu", "gpu-again")
    with database.transaction() as session:
        session.execute(update(Step).where(Step.job_id == job_id).values(queue="gpu.cpu", dispatched_at=None))
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED


def test_a_worker_that_is_told_to_stop_gives_its_step_back(processes: Processes, database: Database) -> None:
    processes.start_all(**STUCK)
    job_id = submit(database)
    wait_until(lambda: running(database, job_id, "prepare"), processes.log)
    processes.ask_to_stop("gpu")
    assert processes.wait_gone("gpu") == 0, processes.log()
    (prepare,) = steps(database, job_id)
    assert prepare.state is StepState.QUEUED
    assert prepare.max_attempts - prepare.attempt == 3, "no attempt was charged"
    with database.transaction() as session:
        assert {view.worker.name for view in cluster_overview(session).workers} == {"agent"}
    processes.worker("gpu", "gpu-again")
    assert wait_for_end(processes, job_id).state is JobState.SUCCEEDED


def test_a_cancel_stops_the_running_step(processes: Processes, database: Database) -> None:
    processes.start_all(**STUCK)
    job_id = submit(database)
    wait_until(lambda: running(database, job_id, "prepare"), processes.log)
    with database.transaction() as session:
        request_cancel(session, ensure_team(session, "blue").id, job_id)
    assert wait_for_end(processes, job_id).state is JobState.CANCELLED
    following = submit(database)
    wait_until(lambda: running(database, following, "prepare"), "the worker is free for the next job")


def test_a_busy_worker_still_reports_itself(processes: Processes, database: Database, settings: Settings) -> None:
    processes.start_all(**STUCK)
    job_id = submit(database)
    wait_until(lambda: running(database, job_id, "prepare"), processes.log)
    (prepare,) = steps(database, job_id)
    expiry = prepare.lease_expires_at
    assert expiry is not None

    def renewed_often() -> bool:
        (now,) = steps(database, job_id)
        assert now.lease_expires_at is not None
        return (now.lease_expires_at - expiry).total_seconds() > 2 * settings.lease_seconds

    wait_until(renewed_often, "the lease is renewed for longer than it lasts")
    (still,) = steps(database, job_id)
    assert (still.state, still.attempt) == (StepState.RUNNING, 1)
    processes.wait_for_workers("gpu")
