"""Measure a scheduler's tick with long backlogs: dispatch and relay, on a real database and broker.

Measured twice for each length: with 200 workers that are all free, which happens once, and with one that has just
become free, which is what happens all day. Wall time, and the scheduler's own processor time.
"""

from __future__ import annotations

import time
from datetime import timedelta
from statistics import median
from typing import Any

from celery import Celery
from sqlalchemy import text

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.problem import Target
from cupilot.domain.states import WorkerKind
from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.cluster import register_worker
from tests.service.doubles import device, problem
from workers.dispatcher import dispatch
from workers.relay import Relay

QUEUE = "gpu.cpu"
WORKERS = 200
TEAMS = 20
STEPS_A_JOB = 100
TICKS = 7
REDISPATCH = timedelta(hours=1)


def measure(database: Database, app: Celery, lengths: list[int]) -> dict[str, Any]:
    """Measure ticks over each backlog."""
    _prepare(database)
    relay = Relay(database, app)
    measurements: dict[str, Any] = {}
    for steps in lengths:
        _fill(database, steps)
        measurements[str(steps)] = {
            "all_workers_free": _ticks(database, relay, WORKERS + 1),
            "one_worker_free": _ticks(database, relay, 1),
        }
    first = measurements[str(lengths[0])]
    for ticks in measurements.values():
        ticks["one_free_over_that_with_the_shortest"] = round(
            ticks["one_worker_free"]["milliseconds"] / first["one_worker_free"]["milliseconds"], 2
        )
    return measurements


def _ticks(database: Database, relay: Relay, free: int) -> dict[str, float]:
    walls, processors = [], []
    for _ in range(TICKS):
        _free(database, free)
        began, busy = time.monotonic(), time.process_time()
        dispatch(database, REDISPATCH)
        relay.run()
        walls.append(time.monotonic() - began)
        processors.append(time.process_time() - busy)
    return {
        "steps": free,
        "milliseconds": round(1e3 * median(walls), 1),
        "scheduler_cpu_ms": round(1e3 * median(processors), 1),
        "milliseconds_a_step": round(1e3 * median(walls) / free, 2),
        "scheduler_cpu_ms_a_step": round(1e3 * median(processors) / free, 2),
    }


def _prepare(database: Database) -> None:
    spec = JobSpec(
        problem=problem(),
        target=Target.CPU,
        method=SceConfig(population=8, generations=3, elites=2),
        budgets=Budgets(candidates=100, wall_seconds=86_400),
        seed=1,
    )
    with database.transaction() as session:
        submit_job(session, ensure_team(session, "model").id, spec, idempotency_key="model", request_hash="0" * 64)
        session.execute(text("UPDATE steps SET queue = 'gpu.elsewhere'"))
        for number in range(TEAMS):
            ensure_team(session, f"backlog-{number}")
        session.execute(text("UPDATE teams SET max_running_jobs = 1000000"))
        for number in range(WORKERS):
            name = f"gpu-{number}"
            register_worker(session, name, WorkerKind.GPU, queues=[QUEUE], slots=1, version="load", device=device())


def _fill(database: Database, steps: int) -> None:
    """Insert so many steps by SQL: how a backlog comes about is not measured here."""
    with database.transaction() as session:
        session.execute(text("DELETE FROM jobs WHERE labels->>'backlog' = 'yes'"))
        session.execute(text("DELETE FROM outbox"))
        session.execute(
            text(
                "INSERT INTO jobs (id, team_id, problem_id, target, method, agents, budgets, seed, priority, labels,"
                " request_hash, state, created_at) SELECT gen_random_uuid(), t.id, j.problem_id, j.target, j.method,"
                " j.agents, j.budgets, j.seed, j.priority, '{\"backlog\": \"yes\"}', j.request_hash, 'queued',"
                " now() - make_interval(secs => n) FROM generate_series(1, :jobs) n"
                " JOIN teams t ON t.name = 'backlog-' || (n % :teams)"
                " CROSS JOIN (SELECT * FROM jobs WHERE idempotency_key = 'model') j"
            ),
            {"jobs": steps // STEPS_A_JOB, "teams": TEAMS},
        )
        session.execute(
            text(
                "INSERT INTO steps (id, job_id, key, kind, queue) SELECT gen_random_uuid(), id, 'load/' || n,"
                " 'prepare', :queue FROM jobs CROSS JOIN generate_series(1, :each) n"
                " WHERE labels->>'backlog' = 'yes'"
            ),
            {"queue": QUEUE, "each": STEPS_A_JOB},
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("steps", "jobs"):
            connection.execute(text(f"VACUUM ANALYZE {table}"))


def _free(database: Database, slots: int) -> None:
    """Mark so many of the published steps as taken and done."""
    taken = "SELECT id FROM steps WHERE queue = :queue AND dispatched_at IS NOT NULL LIMIT :slots"
    with database.transaction() as session:
        again = text(f"UPDATE steps SET dispatched_at = NULL, dispatches = 0 WHERE id IN ({taken})")
        session.execute(again, {"queue": QUEUE, "slots": slots})
        session.execute(text("UPDATE workers SET heartbeat_at = now()"))
