"""Rates of steps that do nothing: ``python -m benchmarks.steps [--seconds 12] [--waiting 5000 100000] [--out FILE]``.

Each step goes the whole way: fair dispatch, outbox, broker, claim, lease, load, work, store, events; only its work is
empty. Beside it, on the same servers in the same run: plain Celery with late acknowledgement and no database, and
procrastinate, whose queue is in Postgres too, where ``--procrastinate`` names a folder that holds it
(``pip install --target FOLDER procrastinate 'psycopg[binary]'``; no part of cuPilot needs it). Also measured: the time
from a job's submission to the start of its first step, on an idle stack. Writes
``benchmarks/results/service/steps.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from sqlalchemy import text

from benchmarks import records
from benchmarks.ending import end_well
from benchmarks.machine import machine
from benchmarks.simulation import cpu_seconds
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.problem import Target
from cupilot.embedded.servers import Running, start_postgres, start_valkey
from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.steps import AGENTS_QUEUE
from migrations import upgrade
from tests.service.databases import empty, new_database
from tests.service.doubles import problem

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "service"
SLOTS = 2
"""Of each kind of worker: one a core."""
TEAMS = 20
STEPS_A_JOB = 100
WARM_SECONDS = 4.0
JOBS_ON_IDLE = 20


def main() -> int:
    """Measure, print, write; exit 1 where a worker stood still."""
    arguments = _parser().parse_args()
    end_well()
    report: dict[str, Any] = {**records.stamp(), "seconds": arguments.seconds, "slots": SLOTS}
    with tempfile.TemporaryDirectory(prefix="cupilot-steps-") as folder, _servers(Path(folder)) as (postgres, valkey):
        log = Path(folder) / "log"
        report["celery"] = _others("celery", arguments, os.environ | {"BROKER": valkey.url}, log)
        if arguments.procrastinate:
            with new_database(postgres.url) as url:
                paths = os.pathsep.join([str(ROOT), arguments.procrastinate])
                report["procrastinate"] = _others(
                    "procrastinate", arguments, os.environ | {"DATABASE": url, "PYTHONPATH": paths}, log
                )
        print(json.dumps(report, indent=1), flush=True)
        upgrade(postgres.url)
        stack = Stack(postgres, valkey, log)
        report["cupilot"] = {}
        for waiting in arguments.waiting:
            report["cupilot"][str(waiting)] = stack.rate(waiting, arguments.seconds)
            print(json.dumps(report["cupilot"][str(waiting)], indent=1), flush=True)
        report["submission_to_first_step"] = stack.latency()
        print(json.dumps(report["submission_to_first_step"], indent=1), flush=True)
    report["machine_afterwards"] = machine()
    if not arguments.dry:
        records.write(arguments.out, report)
    return 0 if all(measured["steps_a_second"] for measured in report["cupilot"].values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each measurement")
    parser.add_argument("--waiting", type=int, nargs="*", default=[10_000, 100_000], help="steps that wait at first")
    parser.add_argument("--procrastinate", metavar="FOLDER", help="where procrastinate is installed")
    parser.add_argument("--out", type=Path, default=RESULTS / "steps.json", metavar="FILE", help="the report")
    parser.add_argument("--dry", action="store_true", help="print only")
    return parser


class Stack:
    """Scheduler and agent worker of the service, over a database that is emptied before each measurement."""

    def __init__(self, postgres: Running, valkey: Running, log: Path) -> None:
        self._postgres = postgres
        self._valkey = valkey
        self._log = log
        self._database = Database(postgres.url)

    def rate(self, waiting: int, seconds: float) -> dict[str, Any]:
        """Return steps a second, and the processor time that one costs each part, over a backlog."""
        empty(self._database)
        _fill(self._database, waiting)
        with self._running() as parts:
            self._wait(lambda: self._done() > 0)
            time.sleep(WARM_SECONDS)
            begun, done, busy = time.monotonic(), self._done(), self._busy(parts)
            time.sleep(seconds)
            steps, elapsed = self._done() - done, time.monotonic() - begun
            spent = {part: now - busy[part] for part, now in self._busy(parts).items()}
        return {
            "steps": steps,
            "steps_a_second": round(steps / elapsed, 1),
            "cpu_ms_a_step": {part: round(1e3 * cpu / max(steps, 1), 2) for part, cpu in spent.items()},
            "wrong_rows": self._wrong(),
        }

    def latency(self) -> dict[str, Any]:
        """Return the milliseconds from a submission to its first running step, one job at a time: between the rows'
        times, and as a client of the database sees it that looks again and again."""
        empty(self._database)
        spans, seen = [], []
        with self._running():
            self._wait(lambda: bool(self._ask("SELECT count(*) FROM workers")))
            time.sleep(WARM_SECONDS)
            for number in range(JOBS_ON_IDLE):
                begun = time.monotonic()
                job = _submit(self._database, f"idle {number}")
                # The benchmark has one worker, of agents: its steps are as far from a submission as a GPU worker's.
                self._wait(partial(self._ask, "SELECT count(started_at) FROM steps WHERE job_id = :job", job=job))
                seen.append(1e3 * (time.monotonic() - begun))
                query = (
                    "SELECT extract(epoch FROM s.started_at - j.created_at) FROM steps s JOIN jobs j ON j.id = s.job_id"
                    " WHERE j.id = :job"
                )
                spans.append(1e3 * float(self._ask(query, job=job)))
                time.sleep(0.3)
        ordered = sorted(spans)
        return {
            "jobs": len(spans),
            "median_ms": round(median(ordered), 1),
            "worst_ms": round(ordered[-1], 1),
            "median_seen_ms": round(median(seen), 1),
        }

    @contextmanager
    def _running(self) -> Iterator[Mapping[str, psutil.Process]]:
        environment = os.environ | {"CUPILOT_DATABASE_URL": self._postgres.url, "CUPILOT_REDIS_URL": self._valkey.url}
        environment["CUPILOT_LOG_LEVEL"] = "WARNING"
        commands = {"scheduler": ["workers", "scheduler"], "worker": ["benchmarks.steps_worker", str(SLOTS)]}
        with self._log.open("ab") as log:
            started = {
                part: subprocess.Popen(
                    [sys.executable, "-m", *command], env=environment, cwd=ROOT, stdout=log, stderr=log
                )
                for part, command in commands.items()
            }
        try:
            servers = {"postgres": self._postgres.process.pid, "valkey": self._valkey.process.pid}
            pids = {part: process.pid for part, process in started.items()} | servers
            yield {part: psutil.Process(pid) for part, pid in pids.items()}
        finally:
            for process in started.values():
                process.terminate()
            for process in started.values():
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _busy(self, parts: Mapping[str, psutil.Process]) -> dict[str, float]:
        return {
            part: sum(map(cpu_seconds, [process, *process.children(recursive=True)])) for part, process in parts.items()
        }

    def _done(self) -> int:
        return int(self._ask("SELECT count(*) FROM steps WHERE state = 'succeeded'"))

    def _wrong(self) -> int:
        """Return how many steps did not succeed exactly once, of those that ended."""
        once = (
            "SELECT count(*) FROM (SELECT s.id FROM steps s LEFT JOIN events e ON e.step_id = s.id"
            " AND e.kind = 'step.succeeded' WHERE s.finished_at IS NOT NULL GROUP BY s.id"
            " HAVING count(e.id) <> 1 OR s.state <> 'succeeded' OR s.attempt <> 1) x"
        )
        return int(self._ask(once))

    def _ask(self, query: str, **values: object) -> Any:
        with self._database.transaction() as session:
            return session.execute(text(query), values).scalar_one()

    def _wait(self, there: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not there():
            if time.monotonic() > deadline:
                raise TimeoutError(self._log.read_text(errors="replace")[-4_000:])
            time.sleep(0.005)


def _others(what: str, arguments: argparse.Namespace, environment: dict[str, str], log: Path) -> dict[str, Any]:
    """Return the rate of another queue, measured by a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.steps_{what}", str(SLOTS), str(WARM_SECONDS), str(arguments.seconds)]
    with log.open("ab") as errors:
        done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, check=False)
    if done.returncode:
        raise RuntimeError(f"{what}: {log.read_text(errors='replace')[-4_000:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _submit(database: Database, name: str) -> uuid.UUID:
    """Submit a job; its first step goes to the benchmark's own queue."""
    spec = JobSpec(
        problem=problem(name), target=Target.CPU, method=SceConfig(), budgets=Budgets(wall_seconds=86_400), seed=1
    )
    with database.transaction() as session:
        team = ensure_team(session, "model")
        job, _ = submit_job(session, team.id, spec, idempotency_key=name, request_hash="0" * 64)
        session.execute(
            text("UPDATE steps SET queue = :queue WHERE job_id = :job"), {"queue": AGENTS_QUEUE, "job": job.id}
        )
        return job.id


def _fill(database: Database, steps: int) -> None:
    """Insert jobs that are evolving, with so many steps, by SQL: how a backlog comes about is not measured here."""
    _submit(database, "model")
    with database.transaction() as session:
        session.execute(text("UPDATE steps SET queue = 'gpu.elsewhere'"))
        for number in range(TEAMS):
            ensure_team(session, f"backlog-{number}")
        session.execute(
            text(
                "INSERT INTO jobs (id, team_id, problem_id, target, method, agents, budgets, seed, priority, labels,"
                " request_hash, state, created_at, started_at) SELECT gen_random_uuid(), t.id, j.problem_id, j.target,"
                ' j.method, j.agents, j.budgets, j.seed, j.priority, \'{"backlog": "yes"}\', j.request_hash,'
                " 'evolving', now() - make_interval(secs => n), now() FROM generate_series(1, :jobs) n"
                " JOIN teams t ON t.name = 'backlog-' || (n % :teams)"
                " CROSS JOIN (SELECT * FROM jobs WHERE idempotency_key = 'model') j"
            ),
            {"jobs": steps // STEPS_A_JOB, "teams": TEAMS},
        )
        session.execute(
            text(
                "INSERT INTO steps (id, job_id, key, kind, queue) SELECT gen_random_uuid(), id, 'load/' || n,"
                " 'translate', :queue FROM jobs CROSS JOIN generate_series(1, :each) n"
                " WHERE labels->>'backlog' = 'yes'"
            ),
            {"queue": AGENTS_QUEUE, "each": STEPS_A_JOB},
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("steps", "jobs"):
            connection.execute(text(f"VACUUM ANALYZE {table}"))


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[Running, Running]]:
    postgres = start_postgres(folder / "postgres")
    try:
        valkey = start_valkey(folder / "valkey")
        try:
            yield postgres, valkey
        finally:
            valkey.stop()
    finally:
        postgres.stop()


if __name__ == "__main__":
    sys.exit(main())
