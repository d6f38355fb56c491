"""procrastinate's rate of empty tasks, for :mod:`benchmarks.steps`: ``steps_procrastinate SLOTS WARM SECONDS``.

Its queue is in Postgres, at ``DATABASE``. One worker process a slot, each with one task at a time and with ten: more of
its tasks at a time are coroutines of one process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import procrastinate  # type: ignore[import-not-found,unused-ignore]
from sqlalchemy import make_url

ROOT = Path(__file__).resolve().parent.parent
COUNT = 20_000
AT_A_TIME = (1, 10)


def _conninfo() -> str:
    url = make_url(os.environ["DATABASE"])
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=_conninfo()))


@app.task(name="nothing")  # type: ignore[untyped-decorator,unused-ignore]
async def nothing() -> None:
    """Do nothing."""


async def _count(state: str) -> int:
    row = await app.connector.execute_query_one_async(
        "SELECT count(*) AS n FROM procrastinate_jobs WHERE status = %(state)s::procrastinate_job_status", state=state
    )
    return int(row["n"])


async def _rate(slots: int, at_a_time: int, warm: float, seconds: float) -> float:
    await app.connector.execute_query_async("DELETE FROM procrastinate_jobs")
    await nothing.batch_defer_async(*({} for _ in range(COUNT)))
    command = [sys.executable, "-m", "benchmarks.steps_procrastinate", "worker", str(at_a_time)]
    workers = [subprocess.Popen(command, cwd=ROOT, stdout=sys.stderr) for _ in range(slots)]  # noqa: ASYNC220
    try:
        while not await _count("succeeded"):  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.05)
        await asyncio.sleep(warm)
        before, began = await _count("succeeded"), time.monotonic()
        await asyncio.sleep(seconds)
        return (await _count("succeeded") - before) / (time.monotonic() - began)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


async def _work(at_a_time: int) -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=at_a_time, listen_notify=True)


async def _measure(slots: int, warm: float, seconds: float) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        rates = {str(count): round(await _rate(slots, count, warm, seconds), 1) for count in AT_A_TIME}
    print(json.dumps({"tasks_a_second_by_tasks_at_a_time": rates}))


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(_work(int(sys.argv[2])))
    else:
        asyncio.run(_measure(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
