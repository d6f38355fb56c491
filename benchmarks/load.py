"""Load on a real API, scheduler and database: ``python -m benchmarks.load [--jobs 1000] [--clients 200]``.

The API is a process of its own on the loopback interface, the clients (:mod:`benchmarks.load_clients`) are another one.
Measured: submissions; status polls of ``--clients`` clients among ``--jobs`` open jobs against one client alone; both
against two API processes; and a scheduler's tick over backlogs of up to ``--steps`` steps (:mod:`benchmarks.backlog`).
Writes ``benchmarks/results/service/load.json``. Read the ratios: times are those of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from pydantic import SecretStr
from sqlalchemy.orm import Session

from benchmarks import records
from benchmarks.backlog import measure
from benchmarks.ending import end_well
from benchmarks.machine import machine
from benchmarks.simulation import cpu_seconds
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, JobSpec
from cupilot.domain.problem import Target
from cupilot.embedded.servers import Running, start_postgres, start_valkey
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import Team
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.people.teams import create_api_key, ensure_team
from migrations import upgrade
from tests.service.doubles import problem
from workers.app import make_app

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "service"


def main() -> int:
    """Measure, print, write; the exit status says whether every request was answered well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000, help="open jobs")
    parser.add_argument("--submissions", type=int, default=200, help="how many more are submitted meanwhile")
    parser.add_argument("--clients", type=int, default=200, help="polling clients")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long is polled")
    parser.add_argument("--steps", type=int, default=100_000, help="longest backlog")
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    end_well()
    report: dict[str, Any] = {**records.stamp(), "arguments": vars(arguments)}
    with tempfile.TemporaryDirectory(prefix="cupilot-load-") as folder, ExitStack() as stack:
        postgres = start_postgres(Path(folder) / "postgres")
        stack.callback(postgres.stop)
        valkey = start_valkey(Path(folder) / "valkey")
        stack.callback(valkey.stop)
        upgrade(postgres.url)
        database = Database(postgres.url)
        stack.callback(database.close)
        report |= _api(database, postgres, valkey, arguments)
        print(json.dumps(report, indent=1), flush=True)
        app = make_app(Settings(redis_url=SecretStr(valkey.url)))
        stack.callback(app.close)
        lengths = sorted({1_000, min(10_000, arguments.steps), arguments.steps})
        report["scheduler"] = measure(database, app, lengths)
    report["machine_afterwards"] = machine()
    print(json.dumps(report["scheduler"], indent=1))
    if not arguments.dry:
        records.write(RESULTS / "load.json", report)
    return 1 if report["submissions"]["failed"] or report["polls"]["failed"] else 0


def _api(database: Database, postgres: Running, valkey: Running, arguments: argparse.Namespace) -> dict[str, Any]:
    servers = {"postgres": postgres.process.pid, "valkey": valkey.process.pid}
    with database.transaction() as session:
        team = ensure_team(session, "load")
        _, key = create_api_key(session, team, "load")
        jobs = [_open_job(session, team, number) for number in range(arguments.jobs)]
    with _replica(postgres, valkey) as (url, server):
        who = {"urls": [url], "key": key}
        alone = _as_clients(who | {"what": "submit", "count": 20, "clients": 1})
        with _prices(server, servers) as submission_prices:
            submitted = _as_clients(who | {"what": "submit", "count": arguments.submissions, "clients": 20})
        jobs += [*alone.pop("jobs"), *submitted.pop("jobs")]
        poll = who | {"what": "poll", "jobs": jobs}
        single = _as_clients(poll | {"clients": 1, "seconds": arguments.seconds / 4})
        memory = server.memory_info().rss
        with _prices(server, servers) as poll_prices:
            polled = _as_clients(poll | {"clients": arguments.clients, "seconds": arguments.seconds})
        grown = server.memory_info().rss
        with _replica(postgres, valkey) as (second, _):
            both = {"urls": [url, second]}
            polled_two = _as_clients(poll | both | {"clients": arguments.clients, "seconds": arguments.seconds / 2})
            submitted_two = _as_clients(
                who | both | {"what": "submit", "count": arguments.submissions, "clients": 20, "mark": "two"}
            )
        del submitted_two["jobs"], polled_two["cpu_seconds"], submitted_two["cpu_seconds"]
        return {
            "open_jobs": len(jobs),
            "submissions": submitted,
            "polls": polled,
            "two_replicas": {"submissions": submitted_two, "polls": polled_two},
            "one_client": {"submissions": alone, "polls": single},
            "cpu_ms_a_submission": _each(submission_prices, submitted),
            "cpu_ms_a_poll": _each(poll_prices, polled),
            "ratios": {
                "poll_throughput_of_all_clients_over_one": _ratio(polled["per_second"], single["per_second"]),
                "poll_median_of_all_clients_over_one": _ratio(polled["median_ms"], single["median_ms"]),
                "poll_p95_over_median": _ratio(polled["p95_ms"], polled["median_ms"]),
                "submission_over_poll_median_one_client": _ratio(alone["median_ms"], single["median_ms"]),
                "api_memory_after_polls_over_before": _ratio(grown, memory),
            },
        }


@contextmanager
def _replica(postgres: Running, valkey: Running) -> Iterator[tuple[str, psutil.Process]]:
    """Run an API process; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = os.environ | {
        "CUPILOT_DATABASE_URL": postgres.url,
        "CUPILOT_REDIS_URL": valkey.url,
        "CUPILOT_API_PORT": str(port),
        "CUPILOT_LOG_LEVEL": "WARNING",
        "CUPILOT_RATE_LIMIT_KEY": "0",
        "CUPILOT_RATE_LIMIT_ADDRESS": "0",
    }
    process = subprocess.Popen([sys.executable, "-m", "api"], env=environment, cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _prices(api: psutil.Process, servers: dict[str, int]) -> Iterator[dict[str, float]]:
    """Yield what will hold the processor seconds that the API and the servers used meanwhile."""
    processes = {"api": api, **{name: psutil.Process(pid) for name, pid in servers.items()}}

    def look() -> dict[str, float]:
        return {
            name: sum(map(cpu_seconds, [process, *process.children(recursive=True)]))
            for name, process in processes.items()
        }

    before = look()
    used: dict[str, float] = {}
    yield used
    used.update({name: seconds - before[name] for name, seconds in look().items()})


def _each(prices: dict[str, float], clients: dict[str, Any]) -> dict[str, float]:
    """Return processor milliseconds a request, those of the clients among them."""
    whole = prices | {"clients": clients.pop("cpu_seconds")}
    each = {name: 1e3 * seconds / max(clients["requests"], 1) for name, seconds in whole.items()}
    return {name: round(value, 2) for name, value in (each | {"all": sum(each.values())}).items()}


def _open_job(session: Session, team: Team, number: int) -> str:
    """Make a job that waits for a worker; how it came about is not measured."""
    spec = JobSpec(
        problem=problem(f"open {number}"), target=Target.CPU, method=SceConfig(), budgets=Budgets(), seed=number
    )
    job, _ = submit_job(session, team.id, spec, idempotency_key=None, request_hash="0" * 64)
    return str(job.id)


def _as_clients(wish: dict[str, Any]) -> dict[str, Any]:
    """Ask from a second process."""
    command = [sys.executable, "-m", "benchmarks.load_clients"]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(wish), stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/healthz", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError(f"no API at {url}")


def _ratio(value: float, base: float) -> float:
    return round(value / base, 2) if base else 0.0


if __name__ == "__main__":
    sys.exit(main())
