"""A cluster in compressed time: ``python -m benchmarks.simulation [--workers 200] [--minutes 60] [--compression 10]``.

Real scheduler, Postgres and Valkey; GPU workers are simulated (:mod:`benchmarks.simulated_workers`): everything but the
evaluation itself is real. Time is compressed by dividing the evaluations' lengths and the lease, heartbeat and
redispatch times by the compression, so the database and the scheduler see as many beats, claims and results in a
minute as a real cluster makes in ``compression`` minutes. The scheduler's tick is not compressed.
Writes ``benchmarks/results/simulation.json`` and prints a summary.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import redis
from pydantic import SecretStr
from sqlalchemy import text

from benchmarks.machine import machine
from cupilot.embedded.servers import start_postgres, start_valkey
from cupilot.evolution.sce import SceConfig
from cupilot.job import Budgets, JobSpec
from cupilot.problem import Target
from cupilot.settings import Settings
from cupilot.storage.database import Database
from cupilot.storage.jobs import submit_job
from cupilot.storage.teams import ensure_team
from migrations import upgrade
from tests.service.doubles import problem

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
LEASE_SECONDS, HEARTBEAT_SECONDS, REDISPATCH_SECONDS = 30.0, 5.0, 60.0
"""The defaults of the settings, before compression."""
PER_PROCESS = 50
SAMPLE_SECONDS = 5.0
TEAMS = 5


@dataclass(frozen=True)
class Sample:
    """One look at the running cluster."""

    seconds: float
    done: int
    """Steps finished so far."""
    scheduler_mb: float
    workers_mb: float
    postgres_mb: float
    valkey_mb: float
    scheduler_cpu: float
    """Seconds of processor time so far."""
    connections: int
    transactions: int
    reaped: int


def main() -> int:
    """Run and report; exit 1 where the cluster lost a lease or stood still."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60.0, help="simulated time")
    parser.add_argument("--compression", type=float, default=10.0)
    parser.add_argument("--write", action="store_true", help="keep the raw result in benchmarks/results")
    arguments = parser.parse_args()
    where = machine()
    with (
        tempfile.TemporaryDirectory(prefix="cupilot-simulation-") as folder,
        _cluster(Path(folder), arguments.workers, arguments.compression) as cluster,
    ):
        samples = cluster.run(arguments.minutes * 60 / arguments.compression)
        latency = cluster.waits()
    report = _report(samples, latency, arguments.workers, arguments.compression)
    whole = {"machine": where, "arguments": vars(arguments), **report, "samples": [asdict(one) for one in samples]}
    print(json.dumps({"machine": where, **report}, indent=1))
    if arguments.write:
        (RESULTS / "simulation.json").write_text(json.dumps(whole, indent=1) + "\n")
    return 0 if report["steps"] > 0 and report["leases_lost"] == 0 else 1


class Cluster:
    """The processes, and the jobs that keep them busy."""

    def __init__(self, database: Database, valkey_url: str, workers: int, started: dict[str, Any]) -> None:
        self._database = database
        self._valkey_url = valkey_url
        self._open = max(workers // 4, 4)
        self._started = started
        self._submitted = 0

    def run(self, seconds: float) -> list[Sample]:
        """Keep the cluster busy for so long; samples from the moment when all workers have worked."""
        begin = time.monotonic()
        samples: list[Sample] = []
        while time.monotonic() - begin < seconds:
            self._fill()
            samples.append(self._sample(time.monotonic() - begin))
            time.sleep(SAMPLE_SECONDS)
        return samples

    def waits(self) -> list[float]:
        """Seconds between the end of a step and the claim of the next on the same worker: what scheduling costs."""
        query = (
            "SELECT extract(epoch FROM started_at - before) FROM (SELECT e.data->>'owner' AS owner, s.started_at,"
            " lag(s.finished_at) OVER (PARTITION BY e.data->>'owner' ORDER BY s.started_at) AS before FROM steps s"
            " JOIN events e ON e.step_id = s.id AND e.kind = 'step.running' WHERE s.queue LIKE 'gpu.%'"
            " AND s.attempt <= 1) gaps WHERE before IS NOT NULL"
        )
        with self._database.transaction() as session:
            return sorted(float(row[0]) for row in session.execute(text(query)))

    def _fill(self) -> None:
        method = SceConfig(population=8, generations=3, elites=2)
        with self._database.transaction() as session:
            unfinished = session.execute(text("SELECT count(*) FROM jobs WHERE finished_at IS NULL")).scalar_one()
        for _ in range(max(self._open - unfinished, 0)):
            self._submitted += 1
            spec = JobSpec(
                problem=problem(f"p{self._submitted}"),
                target=Target.CPU,
                method=method,
                budgets=Budgets(candidates=100, wall_seconds=86_400),
                seed=self._submitted,
            )
            with self._database.transaction() as session:
                team = ensure_team(session, f"team-{self._submitted % TEAMS}")
                submit_job(session, team.id, spec, idempotency_key=None, request_hash=uuid.uuid4().hex * 2)

    def _sample(self, seconds: float) -> Sample:
        counts = (
            "SELECT (SELECT count(*) FROM steps WHERE finished_at IS NOT NULL),"
            " (SELECT count(*) FROM events WHERE kind = 'step.reaped'),"
            " (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cupilot'),"
            " (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())"
        )
        with self._database.transaction() as session:
            done, reaped, connections, transactions = session.execute(text(counts)).one()
        with redis.Redis.from_url(self._valkey_url) as broker:
            valkey = broker.info("memory")["used_memory"] / 2**20
        scheduler = psutil.Process(self._started["scheduler"].pid)
        times = scheduler.cpu_times()
        return Sample(
            seconds,
            done,
            _megabytes(scheduler),
            sum(_megabytes(psutil.Process(one.pid)) for one in self._started["workers"]),
            sum(_megabytes(one) for one in psutil.Process(self._started["postgres"]).children(recursive=True)),
            valkey,
            times.user + times.system,
            connections,
            transactions,
            reaped,
        )


@contextmanager
def _cluster(folder: Path, workers: int, compression: float) -> Iterator[Cluster]:
    postgres, valkey = start_postgres(folder / "postgres"), start_valkey(folder / "valkey")
    upgrade(postgres.url)
    environment = os.environ | {
        "CUPILOT_DATABASE_URL": postgres.url,
        "CUPILOT_REDIS_URL": valkey.url,
        "CUPILOT_LEASE_SECONDS": str(LEASE_SECONDS / compression),
        "CUPILOT_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS / compression),
        "CUPILOT_REDISPATCH_SECONDS": str(REDISPATCH_SECONDS / compression),
    }
    groups = [("gpu", min(PER_PROCESS, workers - begun)) for begun in range(0, workers, PER_PROCESS)]
    groups.append(("agent", max(workers // 25, 2)))
    started: dict[str, Any] = {"postgres": postgres.process.pid}
    log = (folder / "log").open("ab")

    def start(*module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *module]
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    database = Database(Settings(database_url=SecretStr(postgres.url)).database_url.get_secret_value())
    started["scheduler"] = start("workers", "scheduler")
    started["workers"] = [
        start("benchmarks.simulated_workers", kind, str(count), str(compression)) for kind, count in groups
    ]
    try:
        _wait_for(database, sum(count for _, count in groups))
        yield Cluster(database, valkey.url, workers, started)
    finally:
        for process in [*started["workers"], started["scheduler"]]:
            process.kill()
            process.wait()
        database.close()
        valkey.stop()
        postgres.stop()
        log.close()


def _wait_for(database: Database, workers: int) -> None:
    """Until all simulated workers have reported themselves; TimeoutError after two minutes."""
    deadline = time.monotonic() + 120
    while True:
        with database.transaction() as session:
            known = int(session.execute(text("SELECT count(*) FROM workers")).scalar_one())
        if known >= workers:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{known} of {workers} workers are up")
        time.sleep(0.2)


def _megabytes(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.Error:
        return 0.0


def _report(samples: list[Sample], waits: list[float], workers: int, compression: float) -> dict[str, Any]:
    """From the second quarter on: before that, processes start and caches fill."""
    steady = samples[len(samples) // 4 :]
    first, last = steady[0], steady[-1]
    steps, seconds = last.done - first.done, last.seconds - first.seconds
    share = max(steps, 1)
    return {
        "simulated_workers": workers,
        "simulated_minutes": round(last.seconds * compression / 60, 1),
        "steps": last.done,
        "steps_a_second": round(steps / max(seconds, 1e-9), 1),
        "scheduler_cpu_ms_a_step": round(1e3 * (last.scheduler_cpu - first.scheduler_cpu) / share, 2),
        "scheduler_share_of_a_core": round((last.scheduler_cpu - first.scheduler_cpu) / max(seconds, 1e-9), 3),
        "transactions_a_step": round((last.transactions - first.transactions) / share, 1),
        "connections": last.connections,
        "gap_between_steps_seconds_median": round(median(waits), 3) if waits else None,
        "gap_between_steps_seconds_p95": round(waits[int(len(waits) * 0.95)], 3) if waits else None,
        "leases_lost": last.reaped,
        "memory_growth": {
            name: round(_half(steady, name, late=True) / max(_half(steady, name, late=False), 1e-9), 3)
            for name in ("scheduler_mb", "workers_mb", "postgres_mb", "valkey_mb")
        },
    }


def _half(samples: list[Sample], name: str, *, late: bool) -> float:
    """Median memory of the later or the earlier half: growth is their ratio."""
    middle = len(samples) // 2
    half = samples[middle:] if late else samples[: max(middle, 1)]
    return float(median(getattr(one, name) for one in half))


if __name__ == "__main__":
    sys.exit(main())
