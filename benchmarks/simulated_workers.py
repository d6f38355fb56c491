"""One process of simulated workers: ``python -m benchmarks.simulated_workers KIND COUNT COMPRESSION``.

Each registers itself, beats, receives real messages from the real broker and does real steps through
``workers.steps.run_step``: claim, lease, result. Only the work itself is simulated: a judge that waits for as long as a
real evaluation takes, divided by the compression, and agents that answer at once.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from kombu.messaging import Consumer

from cupilot.domain.errors import CupilotError
from cupilot.domain.states import WorkerKind
from cupilot.settings import settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cluster import beat, register_worker, unclaimed_steps
from cupilot.storage.queue.steps import AGENTS_QUEUE
from tests.service.doubles import MemoryPool, ScriptedAgents, ScriptedJudge, device, strategy
from workers import lease
from workers.app import make_app
from workers.devices import StepCancelled
from workers.steps import run_step
from workers.tools import Tools

SECONDS = {"prepare": (10.0, 30.0), "evaluate": (15.0, 45.0), "confirm": (40.0, 80.0)}
"""Duration of real work on a card: uniformly between these."""
QUEUES = {"gpu": "gpu.cpu", "agent": AGENTS_QUEUE}
CONNECTIONS = 12


class WaitingJudge(ScriptedJudge):
    """Waits as long as a real judge would take, in compressed time."""

    def __init__(self, compression: float) -> None:
        super().__init__()
        self._compression = compression

    def _wait(self, call: str, cancelled: Callable[[], bool]) -> None:
        low, high = SECONDS[call.split(maxsplit=1)[0]]
        end = time.monotonic() + random.uniform(low, high) / self._compression
        while (left := end - time.monotonic()) > 0:
            if cancelled():
                raise StepCancelled
            time.sleep(min(left, 0.25))


def main() -> None:
    """Work until killed."""
    kind, count, compression = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    lease.WATCH_SECONDS /= compression
    config = settings()
    database = Database(config.database_url.get_secret_value(), pool_size=CONNECTIONS)
    tag = uuid.uuid4().hex[:6]
    names = [f"{kind}-{tag}-{number}" for number in range(count)]
    threading.Thread(target=_beat, args=[database, kind, names, config.heartbeat_seconds], daemon=True).start()
    judge, pool = WaitingJudge(compression), MemoryPool()
    players = ScriptedAgents([strategy(f"t{number}") for number in range(1, 33)])
    tools = Tools(
        settings=config,
        database=database,
        agents=lambda *_: players.agents(),
        judge=lambda: judge,
        pool=lambda: pool,  # type: ignore[arg-type,return-value]
    )
    free: SimpleQueue[str] = SimpleQueue()
    for name in names:
        free.put(name)

    def work(name: str, step: str, attempt: int) -> None:
        try:
            with suppress(CupilotError):
                run_step(uuid.UUID(step), attempt, name, tools, lambda: False)
        finally:
            free.put(name)

    app = make_app(config)
    with ThreadPoolExecutor(count) as threads, app.connection_for_read() as connection:
        got: list[Any] = []
        queue = app.amqp.queues[QUEUES[kind]]
        consumer: Any = Consumer  # has no types
        with consumer(connection, queues=[queue], on_message=got.append, accept=["json"], prefetch_count=1):
            while True:
                name = free.get()
                while not got:
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=1.0)
                message = got.pop()
                message.ack()
                if message.headers["task"] != "cupilot.step":
                    free.put(name)
                    continue
                [step, attempt], *_ = message.decode()
                threads.submit(work, name, step, attempt)


def _beat(database: Database, kind: str, names: list[str], every: float) -> None:
    """Report each worker by itself, as real ones do, spread over the time between two beats."""
    where = device() if kind == "gpu" else None
    while True:
        for name in names:
            with suppress(CupilotError), database.transaction() as session:
                if beat(session, name) is None:
                    register_worker(
                        session,
                        name,
                        WorkerKind(kind),
                        queues=[QUEUES[kind]],
                        slots=1,
                        version="simulated",
                        device=where,
                    )
                unclaimed_steps(session, name)  # as real ones do with each beat
            time.sleep(every / len(names))


if __name__ == "__main__":
    main()
