"""Load on a real API, scheduler and database: ``python -m benchmarks.load [--jobs 1000] [--clients 200] [--write]``.

The API is a process of its own on the loopback interface, the clients are another one. Measured: submissions; status
polls of ``--clients`` clients among ``--jobs`` open jobs against one client alone; and one scheduler tick with a
backlog of 1,000, 10,000 and ``--steps`` steps. Read the ratios: absolute times are those of the machine that is named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import text

from benchmarks.machine import machine
from cupilot.embedded.servers import start_postgres, start_valkey
from cupilot.storage.cluster import register_worker
from cupilot.storage.database import Database
from cupilot.storage.states import WorkerKind
from cupilot.storage.teams import create_api_key, ensure_team
from migrations import upgrade
from tests.service.doubles import SOURCE, device
from workers.dispatcher import dispatch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
TICKS = 5
WORKERS = 200


def main() -> int:
    """Measure, print, write; the exit status says whether every request was answered well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000, help="open jobs")
    parser.add_argument("--clients", type=int, default=200, help="polling clients")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long is polled")
    parser.add_argument("--steps", type=int, default=100_000, help="largest backlog")
    parser.add_argument("--write", action="store_true", help="keep the raw result in benchmarks/results")
    parser.add_argument("--as-clients", nargs=3, metavar=("URL", "KEY", "WISH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_clients:
        url, key, wish = arguments.as_clients
        print(json.dumps(asyncio.run(_clients(url, key, json.loads(wish)))))
        return 0
    report: dict[str, Any] = {"machine": machine(), "arguments": vars(arguments)}
    with tempfile.TemporaryDirectory(prefix="cupilot-load-") as folder:
        postgres, valkey = start_postgres(Path(folder) / "postgres"), start_valkey(Path(folder) / "valkey")
        try:
            upgrade(postgres.url)
            database = Database(postgres.url)
            report |= _api(database, postgres.url, valkey.url, arguments)
            report["scheduler"] = _backlog(database, arguments.steps)
            database.close()
        finally:
            valkey.stop()
            postgres.stop()
    print(json.dumps(report, indent=1))
    if arguments.write:
        (RESULTS / "load.json").write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["submissions"]["failed"] or report["polls"]["failed"] else 0


def _api(database: Database, postgres: str, valkey: str, arguments: argparse.Namespace) -> dict[str, Any]:
    with database.transaction() as session:
        _, key = create_api_key(session, ensure_team(session, "load"), "load")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = os.environ | {
        "CUPILOT_DATABASE_URL": postgres,
        "CUPILOT_REDIS_URL": valkey,
        "CUPILOT_API_PORT": str(port),
        "CUPILOT_LOG_LEVEL": "WARNING",
        "CUPILOT_RATE_LIMIT_KEY": "0",
        "CUPILOT_RATE_LIMIT_ADDRESS": "0",
    }
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "api"], env=environment, cwd=ROOT)
    try:
        _wait_ready(url)
        alone = _as_clients(url, key, {"what": "submit", "count": 20, "clients": 1})
        submitted = _as_clients(url, key, {"what": "submit", "count": arguments.jobs, "clients": 20})
        jobs = submitted.pop("jobs")
        alone.pop("jobs")
        one = _as_clients(url, key, {"what": "poll", "jobs": jobs, "clients": 1, "seconds": arguments.seconds / 4})
        polled = _as_clients(
            url, key, {"what": "poll", "jobs": jobs, "clients": arguments.clients, "seconds": arguments.seconds}
        )
        return {
            "open_jobs": len(jobs),
            "submissions": submitted,
            "polls": polled,
            "one_client": {"submissions": alone, "polls": one},
            "ratios": {
                "poll_throughput_of_all_clients_over_one": _ratio(polled["per_second"], one["per_second"]),
                "poll_median_of_all_clients_over_one": _ratio(polled["median_ms"], one["median_ms"]),
                "poll_p95_over_median": _ratio(polled["p95_ms"], polled["median_ms"]),
                "submission_over_poll_median_one_client": _ratio(alone["median_ms"], one["median_ms"]),
            },
        }
    finally:
        process.terminate()
        process.wait()


def _as_clients(url: str, key: str, wish: dict[str, Any]) -> dict[str, Any]:
    """Ask from a second process."""
    command = [sys.executable, "-m", "benchmarks.load", "--as-clients", url, key, json.dumps(wish)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


async def _clients(url: str, key: str, wish: dict[str, Any]) -> dict[str, Any]:
    times: list[float] = []
    failed = 0
    jobs: list[str] = []
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=wish["clients"], max_keepalive_connections=wish["clients"])
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False) as http:

        async def submit(number: int) -> None:
            nonlocal failed
            body = {"problem": {"name": f"load {number}", "source": f"{SOURCE}# {number}\n"}, "target": "cpu"}
            begin = time.monotonic()
            response = await http.post("/v1/jobs", json=body)
            times.append(time.monotonic() - begin)
            failed += response.status_code != 202
            jobs.append(response.json().get("id", ""))

        async def submitter(first: int) -> None:
            for number in range(first, wish["count"], wish["clients"]):
                await submit(number)

        async def poller(first: int) -> None:
            nonlocal failed
            number = first
            while time.monotonic() - started < wish["seconds"]:
                begin = time.monotonic()
                response = await http.get(f"/v1/jobs/{wish['jobs'][number % len(wish['jobs'])]}")
                times.append(time.monotonic() - begin)
                failed += response.status_code != 200
                number += wish["clients"]

        work = submitter if wish["what"] == "submit" else poller
        await asyncio.gather(*(work(client) for client in range(wish["clients"])))
    seconds = time.monotonic() - started
    ordered = sorted(times)
    found: dict[str, Any] = {
        "requests": len(times),
        "failed": failed,
        "per_second": round(len(times) / seconds, 1),
        "median_ms": round(1e3 * median(ordered), 2),
        "p95_ms": round(1e3 * ordered[int(len(ordered) * 0.95)], 2),
        "p99_ms": round(1e3 * ordered[int(len(ordered) * 0.99)], 2),
    }
    return found | ({"jobs": jobs} if wish["what"] == "submit" else {})


def _backlog(database: Database, largest: int) -> dict[str, Any]:
    """One tick's dispatch to 200 free workers, with ever longer backlogs: 20 teams, 100 steps a job."""
    found: dict[str, Any] = {}
    with database.transaction() as session:
        session.execute(text("UPDATE steps SET queue = 'gpu.elsewhere'"))
        for number in range(WORKERS):
            register_worker(
                session,
                f"gpu-{number}",
                WorkerKind.GPU,
                queues=["gpu.cpu"],
                slots=1,
                version="load",
                device=device(),
            )
    for steps in sorted({1_000, 10_000, largest}):
        _fill(database, steps)
        times = []
        for _ in range(TICKS):
            with database.transaction() as session:  # as if all workers were free again
                session.execute(text("UPDATE steps SET dispatched_at = NULL WHERE dispatched_at IS NOT NULL"))
                session.execute(text("UPDATE workers SET heartbeat_at = now()"))
            begin = time.monotonic()
            dispatch(database, timedelta(seconds=60))
            times.append(time.monotonic() - begin)
        found[f"tick_ms_with_{steps}_waiting"] = round(1e3 * median(times), 1)
    small = found["tick_ms_with_1000_waiting"]
    found["ms_a_dispatched_step_with_1000_waiting"] = round(small / (WORKERS + 1), 3)
    found["tick_over_that_with_1000"] = {
        name: _ratio(value, small) for name, value in found.items() if name.startswith("tick_ms")
    }
    return found


def _fill(database: Database, steps: int) -> None:
    """Insert what is missing to so many waiting steps, by SQL: how they came about is not measured here."""
    with database.transaction() as session:
        for number in range(20):
            ensure_team(session, f"backlog-{number}")
        session.execute(text("DELETE FROM jobs WHERE labels->>'backlog' = 'yes'"))
        session.execute(
            text(
                "INSERT INTO jobs (id, team_id, problem_id, target, method, agents, budgets, seed, priority, labels,"
                " request_hash, state, created_at) SELECT gen_random_uuid(), t.id, j.problem_id, j.target, j.method,"
                " j.agents, j.budgets, j.seed, j.priority, '{\"backlog\": \"yes\"}', j.request_hash, 'queued',"
                " now() - make_interval(secs => n) FROM generate_series(1, :jobs) n"
                " JOIN LATERAL (SELECT id FROM teams WHERE name = 'backlog-' || (n % 20)) t ON true"
                " CROSS JOIN (SELECT * FROM jobs WHERE labels->>'backlog' IS NULL LIMIT 1) j"
            ),
            {"jobs": steps // 100},
        )
        session.execute(
            text(
                "INSERT INTO steps (id, job_id, key, kind, queue) SELECT gen_random_uuid(), id, 'load/' || n,"
                " 'prepare', 'gpu.cpu' FROM jobs CROSS JOIN generate_series(1, 100) n WHERE labels->>'backlog' = 'yes'"
            )
        )
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE steps"))
        connection.execute(text("VACUUM ANALYZE jobs"))


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
