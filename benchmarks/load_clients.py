"""The clients of :mod:`benchmarks.load`, a process of their own: reads its order, prints its results.

They speak just as much HTTP as the service's answers need, since they share the machine with it: a general client takes
as much of a processor for a request as the service does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from tests.service.doubles import SOURCE

TIMEOUT_SECONDS = 120.0
"""Longer than anything is waited for: what takes longer counts as failed."""


class Connection:
    """A connection that is kept, for one request at a time; opened anew after a failure."""

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._head = f"Host: {address.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of an answer, whose length must be stated."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(status_line.split()[1]), await reader.readexactly(int(fields["content-length"]))

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def clients(order: dict[str, Any]) -> dict[str, Any]:
    """Run clients as ``order`` says: urls, key, what (submit or poll), clients, and count, or jobs and seconds."""
    times: list[float] = []
    failures: Counter[str] = Counter()
    jobs: list[str] = []
    many = order["clients"]
    connections = [Connection(order["urls"][client % len(order["urls"])], order["key"]) for client in range(many)]
    begun, busy = time.monotonic(), time.process_time()

    async def ask(client: int, method: str, path: str, wanted: int, body: bytes = b"") -> bytes | None:
        begin = time.monotonic()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status, answer = await connections[client].ask(method, path, body)
        except (OSError, EOFError) as error:
            failures[type(error).__name__] += 1
            connections[client].close()
            return None
        times.append(time.monotonic() - begin)
        if status != wanted:
            failures[str(status)] += 1
            return None
        return answer

    async def submitter(client: int) -> None:
        for number in range(client, order["count"], many):
            problem = {"name": f"load {number}", "source": f"{SOURCE}# {many} {number} {order.get('mark', '')}\n"}
            body = json.dumps({"problem": problem, "target": "cpu"}).encode()
            made = await ask(client, "POST", "/v1/jobs", 202, body)
            jobs.extend([json.loads(made)["id"]] if made else [])

    async def poller(client: int) -> None:
        number = client
        while time.monotonic() - begun < order["seconds"]:
            await ask(client, "GET", f"/v1/jobs/{order['jobs'][number % len(order['jobs'])]}", 200)
            number += many

    work = submitter if order["what"] == "submit" else poller
    await asyncio.gather(*(work(client) for client in range(many)))
    seconds, spent = time.monotonic() - begun, time.process_time() - busy
    for connection in connections:
        connection.close()
    ordered = sorted(times) or [float("nan")]
    result: dict[str, Any] = {
        "clients": many,
        "requests": len(times),
        "failed": sum(failures.values()),
        "failures": dict(failures),
        "cpu_seconds": spent,
        "per_second": round(len(times) / seconds, 1),
        "median_ms": round(1e3 * median(ordered), 2),
        "p95_ms": round(1e3 * ordered[int(len(ordered) * 0.95)], 2),
        "p99_ms": round(1e3 * ordered[int(len(ordered) * 0.99)], 2),
    }
    return result | ({"jobs": jobs} if order["what"] == "submit" else {})


if __name__ == "__main__":
    print(json.dumps(asyncio.run(clients(json.load(sys.stdin)))))
