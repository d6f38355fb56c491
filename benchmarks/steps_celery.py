"""Plain Celery's rate of tasks that do nothing, for :mod:`benchmarks.steps`: ``steps_celery SLOTS WARM SECONDS``.

Late acknowledgement and one message a slot, as the service has them; no database. The broker is ``BROKER``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import redis
from celery import Celery

COUNT = 60_000
QUEUE = "plain"

app = Celery("plain", broker=os.environ.get("BROKER"))
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=1, task_ignore_result=True, worker_enable_remote_control=False
)


@app.task(name="nothing")  # type: ignore[untyped-decorator]
def nothing() -> None:
    """Do nothing."""


def main() -> None:
    """Fill the queue, start the worker, print the rate as JSON."""
    slots, warm, seconds = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with app.producer_or_acquire() as producer:
        began = time.monotonic()
        for _ in range(2_000):
            nothing.apply_async(queue=QUEUE, producer=producer)
        published = 2_000 / (time.monotonic() - began)
    with redis.Redis.from_url(os.environ["BROKER"]) as broker:
        message = broker.lindex(QUEUE, 0)
        assert message is not None
        for _ in range(COUNT // 1_000):  # copies: how they got there is not measured
            broker.lpush(QUEUE, *([message] * 1_000))
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.steps_celery", "--quiet", "worker"]
        command += ["--pool=prefork", f"--concurrency={slots}", f"--queues={QUEUE}", "--loglevel=ERROR"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = subprocess.Popen(command, cwd=Path(__file__).resolve().parent.parent, stdout=sys.stderr)
        try:
            full = broker.llen(QUEUE)
            while broker.llen(QUEUE) >= full:
                time.sleep(0.01)
            time.sleep(warm)
            before, began = broker.llen(QUEUE), time.monotonic()
            time.sleep(seconds)
            done = before - broker.llen(QUEUE)
            rate = done / (time.monotonic() - began)
        finally:
            worker.terminate()
            worker.wait()
        broker.flushall()
    print(json.dumps({"tasks_a_second": round(rate, 1), "published_a_second": round(published, 1)}))


if __name__ == "__main__":
    main()
