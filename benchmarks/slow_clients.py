"""Measure what slow clients cost others: ``python -m benchmarks.slow_clients [--connections 1000] [--requests 400]``.

The API is a process of its own. Its answers to a client that asks again and again are timed alone, and while so many
connections from other addresses of this machine send one byte of a head each second, from a process of their own, and
are opened anew as soon as they are closed. Writes ``benchmarks/results/service/slow_clients.json``; exit 1 where an
answer failed, the connections were not reached, or the 99th percentile beside them is twice the normal one or more.
Read the ratio: times are those of the machine.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import psutil

from benchmarks import records
from benchmarks.ending import end_well
from benchmarks.machine import machine
from cupilot.embedded.servers import start_postgres, start_valkey
from cupilot.storage.db.engine import Database
from cupilot.storage.people.teams import create_api_key, ensure_team
from migrations import upgrade

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "service"
ADDRESSES = 4
"""From which the slow ones come: as many in all as the limit of connections by address lets in of them."""
HEAD = b"GET /v1/jobs HTTP/1.1\r\nHost: cupilot\r\nX-Slow: "
START_SECONDS = 120.0
REACHED = 0.9
"""Share of the slow connections that must be open: some are being opened anew at any time."""
MOST = 2.0
"""Of the 99th percentile beside them over that alone."""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1_000, help="slow connections")
    parser.add_argument("--requests", type=int, default=400, help="timed answers, alone and beside them")
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument("--attack", type=int, metavar="PORT", help="be the slow clients")
    arguments = parser.parse_args()
    if arguments.attack:
        asyncio.run(_attack(arguments.attack, arguments.connections))
    end_well()
    report: dict[str, Any] = {**records.stamp(), "arguments": vars(arguments)}
    with tempfile.TemporaryDirectory(prefix="cupilot-slow-") as folder, ExitStack() as stack:
        postgres = start_postgres(Path(folder) / "postgres")
        stack.callback(postgres.stop)
        valkey = start_valkey(Path(folder) / "valkey")
        stack.callback(valkey.stop)
        upgrade(postgres.url)
        database = Database(postgres.url)
        stack.callback(database.close)
        with database.transaction() as session:
            _, key = create_api_key(session, ensure_team(session, "patient"), "benchmark")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        environment = os.environ | {
            "CUPILOT_DATABASE_URL": postgres.url,
            "CUPILOT_REDIS_URL": valkey.url,
            "CUPILOT_API_PORT": str(port),
            "CUPILOT_LOG_LEVEL": "WARNING",
            "CUPILOT_RATE_LIMIT_KEY": "0",
        }
        api = subprocess.Popen([sys.executable, "-m", "api"], env=environment, cwd=ROOT)
        stack.callback(api.wait)
        stack.callback(api.terminate)
        report |= asyncio.run(_measure(psutil.Process(api.pid), port, key, arguments.connections, arguments.requests))
    report["machine_afterwards"] = machine()
    print(json.dumps(report, indent=1))
    if not arguments.dry:
        records.write(RESULTS / "slow_clients.json", report)
    held = report["open_connections"] >= REACHED * arguments.connections
    return 0 if held and not report["failed"] and report["p99_beside_over_alone"] < MOST else 1


async def _measure(api: psutil.Process, port: int, key: str, connections: int, requests: int) -> dict[str, Any]:
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        await _wait_ready(client)
        await _ask(client, requests // 4)
        alone, failed = await _ask(client, requests)
        with _attacked(api, port, connections):
            beside, failed_too = await _ask(client, requests)
            reached = len(api.net_connections("tcp")) - 2  # its own, and this client's
    return {
        "alone_ms": alone,
        "beside_ms": beside,
        "open_connections": reached,
        "p99_beside_over_alone": round(beside["p99"] / alone["p99"], 2),
        "failed": failed + failed_too,
    }


async def _ask(client: httpx.AsyncClient, requests: int) -> tuple[dict[str, float], int]:
    """Return the median and the 99th percentile of so many answers, in milliseconds, and how many failed."""
    spans, failed = [], 0
    for _ in range(requests):
        begun = time.monotonic()
        answer = await client.get("/v1/jobs")
        spans.append(1e3 * (time.monotonic() - begun))
        failed += answer.status_code != 200
    cuts = quantiles(spans, n=100)
    return {"median": round(cuts[49], 1), "p99": round(cuts[98], 1)}, failed


@contextmanager
def _attacked(api: psutil.Process, port: int, connections: int) -> Iterator[None]:
    """Hold so many connections open that never finish a head."""
    command = [sys.executable, "-m", "benchmarks.slow_clients", "--attack", str(port), "--connections"]
    attacker = subprocess.Popen([*command, str(connections)], cwd=ROOT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while len(api.net_connections("tcp")) < REACHED * connections and time.monotonic() < deadline:
            time.sleep(0.1)
        yield
    finally:
        attacker.kill()
        attacker.wait()


async def _attack(port: int, connections: int) -> None:
    await asyncio.gather(*(_trickle(port, number) for number in range(connections)))


async def _trickle(port: int, number: int) -> None:
    own = (f"127.0.0.{2 + number % ADDRESSES}", 0)
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=own)
            try:
                writer.write(HEAD)
                while not writer.is_closing():
                    await asyncio.sleep(1)
                    writer.write(b"x")
                    await writer.drain()
            finally:
                writer.close()
        await asyncio.sleep(0.2)


async def _wait_ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if (await client.get("/healthz")).status_code == 200:
                return
        await asyncio.sleep(0.1)
    raise TimeoutError("the API does not start")


if __name__ == "__main__":
    sys.exit(main())
