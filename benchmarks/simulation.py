"""A cluster in compressed time: ``python -m benchmarks.simulation [--workers 200] [--minutes 60] [--compression 10]``.

Real scheduler, Postgres and Valkey; GPU workers are simulated (:mod:`benchmarks.simulated_workers`): everything but the
evaluation itself is real. Time is compressed by dividing the evaluations' lengths and the lease, heartbeat and
redispatch times by the compression, so the database and the scheduler see as many beats, claims and results in a
minute as a real cluster makes in ``compression`` minutes: 200 workers, ten times faster, are 2,000 cards to them. The
scheduler's tick is not compressed. Smaller clusters go first, for a shorter time, so that one sees what grows.

``--cards 500`` asks another question, which rate the control plane reaches at all: of so many cards each evaluation
takes ``--evaluation-seconds`` of real time, one by default, for a minute and a half, with nothing compressed. Its
record is ``benchmarks/results/service/simulation_cards.json``.

Writes ``benchmarks/results/service/simulation.json``, or ``--out``, and prints a summary. The default takes some eight
minutes.
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
from sqlalchemy import text

from benchmarks import records
from benchmarks.ending import end_well
from benchmarks.machine import machine
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.problem import Target
from cupilot.embedded.servers import start_postgres, start_valkey
from cupilot.storage.db.engine import Database
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import ensure_team
from migrations import upgrade
from tests.service.doubles import problem

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "service"
LEASE_SECONDS, HEARTBEAT_SECONDS, REDISPATCH_SECONDS = 30.0, 5.0, 60.0
"""The defaults of the settings, before compression."""
PER_PROCESS = 50
SAMPLE_SECONDS = 5.0
TEAMS = 5
FULL_RATE_MINUTES = 1.5
"""Of a run with ``--cards``, where no shorter time is asked for."""


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
    """Seconds of processor time so far; likewise the others."""
    postgres_cpu: float
    valkey_cpu: float
    workers_cpu: float
    card_steps: int
    """Steps that a GPU worker finished so far."""
    card_seconds: float
    """Time for which GPU workers held them."""
    connections: int
    transactions: int
    reaped: int


KEPT_SAMPLES = 24
"""Of a cluster, in its record; growth is reckoned from all of them."""


def main() -> int:
    """Run and report; exit 1 where a cluster stood still."""
    arguments = parser().parse_args()
    end_well()
    if arguments.cards:
        at_full_rate(arguments)
    whole: dict[str, Any] = {**records.stamp(), "arguments": of_the_run(arguments), "clusters": []}
    for workers in [*arguments.before, arguments.workers]:
        minutes = arguments.minutes if workers == arguments.workers else 10.0
        with (
            tempfile.TemporaryDirectory(prefix="cupilot-simulation-") as folder,
            _cluster(Path(folder), workers, arguments.compression, arguments.evaluation_seconds) as cluster,
        ):
            samples = cluster.run(minutes * 60 / arguments.compression)
            report = _report(samples, cluster.stages(), workers, arguments.compression)
        print(json.dumps(report, indent=1), flush=True)
        kept = samples[:: max(len(samples) // KEPT_SAMPLES, 1)]
        whole["clusters"].append(report | {"samples": [asdict(sample) for sample in kept]})
    whole["machine_afterwards"] = machine()
    if not arguments.dry:
        records.write(arguments.out, whole, tables=True)
    print(whole["machine"], whole["machine_afterwards"], sep="\n")
    return 0 if all(cluster["steps"] > 0 for cluster in whole["clusters"]) else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--workers", type=int, default=200)
    made.add_argument("--minutes", type=float, default=60.0, help="simulated time")
    made.add_argument("--compression", type=float, default=10.0)
    made.add_argument("--before", type=int, nargs="*", default=[50], help="smaller clusters, for ten minutes each")
    made.add_argument("--cards", type=int, default=0, help="find the rate that so many fast cards get out of it")
    made.add_argument("--evaluation-seconds", type=float, default=0.0, help="of real time; 0: as real cards take")
    made.add_argument("--out", type=Path, default=RESULTS / "simulation.json", metavar="FILE", help="the report")
    made.add_argument("--dry", action="store_true", help="print only")
    return made


def at_full_rate(arguments: argparse.Namespace) -> None:
    """Set the options that ``--cards`` stands for."""
    arguments.workers, arguments.before = arguments.cards, []
    arguments.compression, arguments.minutes = 1.0, min(arguments.minutes, FULL_RATE_MINUTES)
    arguments.evaluation_seconds = arguments.evaluation_seconds or 1.0
    if arguments.out == RESULTS / "simulation.json":
        arguments.out = RESULTS / "simulation_cards.json"


def of_the_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that decide what is measured, without where it is written."""
    asked = {name: value for name, value in vars(arguments).items() if name != "out"}
    return {name: value for name, value in asked.items() if value or name not in ("cards", "evaluation_seconds")}


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

    def stages(self) -> dict[str, dict[str, float]]:
        """Return median seconds of real time that a step spends in each stage, for cards and for agents."""
        median_of = "percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM {} - {}))"
        pairs = (("dispatched_at", "created_at"), ("started_at", "dispatched_at"), ("finished_at", "started_at"))
        query = (
            f"SELECT queue, {', '.join(median_of.format(*pair) for pair in pairs)} FROM steps"
            " WHERE state = 'succeeded' AND attempt = 1 GROUP BY queue"
        )
        names = ("waits_for_a_slot", "waits_for_its_message", "is_done")
        with self._database.transaction() as session:
            rows = session.execute(text(query)).all()
        return {
            queue: dict(zip(names, (round(float(seconds), 3) for seconds in rest), strict=True))
            for queue, *rest in rows
        }

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
            " (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
            " (SELECT count(*) FROM steps WHERE finished_at IS NOT NULL AND queue LIKE 'gpu.%'),"
            " (SELECT coalesce(sum(busy_seconds), 0) FROM steps WHERE finished_at IS NOT NULL AND queue LIKE 'gpu.%')"
        )
        with self._database.transaction() as session:
            row = session.execute(text(counts)).one()
        done, reaped, connections, transactions, card_steps, card_seconds = row
        with redis.Redis.from_url(self._valkey_url) as broker:
            valkey = broker.info("memory")["used_memory"] / 2**20
        scheduler, postgres = psutil.Process(self._started["scheduler"].pid), psutil.Process(self._started["postgres"])
        workers = [psutil.Process(process.pid) for process in self._started["workers"]]
        backends = postgres.children(recursive=True)
        return Sample(
            seconds=seconds,
            done=done,
            scheduler_mb=_megabytes(scheduler),
            workers_mb=sum(map(_megabytes, workers)),
            postgres_mb=sum(map(_megabytes, backends)),
            valkey_mb=valkey,
            scheduler_cpu=cpu_seconds(scheduler),
            postgres_cpu=sum(map(cpu_seconds, [postgres, *backends])),
            valkey_cpu=cpu_seconds(psutil.Process(self._started["valkey"])),
            workers_cpu=sum(map(cpu_seconds, workers)),
            card_steps=card_steps,
            card_seconds=float(card_seconds),
            connections=connections,
            transactions=transactions,
            reaped=reaped,
        )


@contextmanager
def _cluster(folder: Path, workers: int, compression: float, evaluation_seconds: float = 0.0) -> Iterator[Cluster]:
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
    groups.append(("agent", max(workers // 8, 4)))
    started: dict[str, Any] = {"postgres": postgres.process.pid, "valkey": valkey.process.pid}
    log = (folder / "log").open("ab")

    def start(*module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *module]
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)

    database = Database(postgres.url)
    started["scheduler"] = start("workers", "scheduler")
    started["workers"] = [
        start("benchmarks.simulated_workers", kind, str(count), str(compression), str(evaluation_seconds))
        for kind, count in groups
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
    """Wait until all simulated workers have registered; TimeoutError after five minutes."""
    deadline = time.monotonic() + 300
    while True:
        with database.transaction() as session:
            known = int(session.execute(text("SELECT count(*) FROM workers")).scalar_one())
        if known >= workers:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{known} of {workers} workers are up")
        time.sleep(0.2)


def cpu_seconds(process: psutil.Process) -> float:
    """Return seconds of processor time, of children that have ended too."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _megabytes(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.Error:
        return 0.0


def _report(
    samples: list[Sample], stages: dict[str, dict[str, float]], workers: int, compression: float
) -> dict[str, Any]:
    """Report from the second quarter on: before that, processes start and caches fill."""
    steady = samples[len(samples) // 4 :]
    first, last = steady[0], steady[-1]
    seconds, share = max(last.seconds - first.seconds, 1e-9), max(last.done - first.done, 1)
    card_steps = last.card_steps - first.card_steps
    card_seconds = (last.card_seconds - first.card_seconds) / max(card_steps, 1) * compression
    parts = ("scheduler", "postgres", "valkey", "workers")
    cpu = {part: getattr(last, f"{part}_cpu") - getattr(first, f"{part}_cpu") for part in parts}
    return {
        "simulated_workers": workers,
        "load_of_so_many_cards": round(workers * compression),
        "simulated_minutes": round(last.seconds * compression / 60, 1),
        "steps": last.done,
        "steps_a_second": round((last.done - first.done) / seconds, 1),
        "cards_busy": round((last.card_seconds - first.card_seconds) / seconds / workers, 3),
        "seconds_a_step_holds_a_card": round(card_seconds, 1),
        "cpu_ms_a_step": {part: round(1e3 * spent / share, 2) for part, spent in cpu.items()},
        "cores": {part: round(spent / seconds, 3) for part, spent in cpu.items()},
        # At this price of a step, cards that keep one core of the part busy: the scheduler has no more than one.
        "cards_a_core": {
            part: round(card_seconds * card_steps / spent) for part, spent in cpu.items() if part != "workers" and spent
        },
        "transactions_a_step": round((last.transactions - first.transactions) / share, 1),
        "connections": last.connections,
        "stages": stages,
        "leases_lost": last.reaped,
        "memory_growth": {
            name: round(_half(steady, name, late=True) / max(_half(steady, name, late=False), 1e-9), 3)
            for name in ("scheduler_mb", "workers_mb", "postgres_mb", "valkey_mb")
        },
    }


def _half(samples: list[Sample], name: str, *, late: bool) -> float:
    """Return the median memory of the later or the earlier half: growth is their ratio."""
    middle = len(samples) // 2
    half = samples[middle:] if late else samples[: max(middle, 1)]
    return float(median(getattr(sample, name) for sample in half))


if __name__ == "__main__":
    sys.exit(main())
