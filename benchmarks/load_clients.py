"""The clients of :mod:`benchmarks.load`, a process of their own: reads its order, prints its results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from statistics import median
from typing import Any

import httpx

from tests.service.doubles import SOURCE

TIMEOUT_SECONDS = 120.0
"""Longer than anything is waited for: what takes longer counts as failed."""


async def clients(order: dict[str, Any]) -> dict[str, Any]:
    """Run clients as ``order`` says: url, key, what (submit or poll), clients, and count, or jobs and seconds."""
    times: list[float] = []
    failures: Counter[str] = Counter()
    jobs: list[str] = []
    many = order["clients"]
    limits = httpx.Limits(max_connections=many, max_keepalive_connections=many)
    headers = {"Authorization": f"Bearer {order['key']}"}
    begun, busy = time.monotonic(), time.process_time()
    async with httpx.AsyncClient(
        base_url=order["url"], headers=headers, timeout=TIMEOUT_SECONDS, limits=limits, trust_env=False
    ) as http:

        async def ask(method: str, path: str, wanted: int, **rest: Any) -> Any:
            begin = time.monotonic()
            try:
                response = await http.request(method, path, **rest)
            except httpx.HTTPError as error:
                failures[type(error).__name__] += 1
                return None
            times.append(time.monotonic() - begin)
            if response.status_code != wanted:
                failures[str(response.status_code)] += 1
                return None
            return response.json()

        async def submitter(first: int) -> None:
            for number in range(first, order["count"], many):
                problem = {"name": f"load {number}", "source": f"{SOURCE}# {many} {number}\n"}
                made = await ask("POST", "/v1/jobs", 202, json={"problem": problem, "target": "cpu"})
                jobs.extend([made["id"]] if made else [])

        async def poller(number: int) -> None:
            while time.monotonic() - begun < order["seconds"]:
                await ask("GET", f"/v1/jobs/{order['jobs'][number % len(order['jobs'])]}", 200)
                number += many

        work = submitter if order["what"] == "submit" else poller
        await asyncio.gather(*(work(client) for client in range(many)))
    seconds = time.monotonic() - begun
    ordered = sorted(times) or [float("nan")]
    result: dict[str, Any] = {
        "clients": many,
        "requests": len(times),
        "failed": sum(failures.values()),
        "failures": dict(failures),
        "cpu_seconds": time.process_time() - busy,
        "per_second": round(len(times) / seconds, 1),
        "median_ms": round(1e3 * median(ordered), 2),
        "p95_ms": round(1e3 * ordered[int(len(ordered) * 0.95)], 2),
        "p99_ms": round(1e3 * ordered[int(len(ordered) * 0.99)], 2),
    }
    return result | ({"jobs": jobs} if order["what"] == "submit" else {})


if __name__ == "__main__":
    print(json.dumps(asyncio.run(clients(json.load(sys.stdin)))))
