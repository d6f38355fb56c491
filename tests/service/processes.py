"""Real processes of the service with the test doubles: started, killed, told to stop.

They are forked from a process that has imported what they need, which takes more than a second of a core each time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cluster import cluster_overview
from tests.service.worker_process import run_role

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90.0
"""No measure of anything: a test that waits for so long has failed."""

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.service.worker_process", "workers.scheduler"])


def wait_until(true: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Return as soon as it is true; ``what``, or its answer by then, is said where it never was."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, f"waited in vain: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)


class Processes:
    """The processes of one service."""

    def __init__(self, settings: Settings, database: Database, logs: Path) -> None:
        self.database = database
        self._logs = logs
        self._running: dict[str, ForkServerProcess] = {}
        self._environment = os.environ | {
            "CUPILOT_DATABASE_URL": settings.database_url.get_secret_value(),
            "CUPILOT_REDIS_URL": settings.redis_url.get_secret_value(),
            "CUPILOT_LEASE_SECONDS": str(settings.lease_seconds),
            "CUPILOT_HEARTBEAT_SECONDS": str(settings.heartbeat_seconds),
            "CUPILOT_SCHEDULER_TICK_SECONDS": str(settings.scheduler_tick_seconds),
            "CUPILOT_REDISPATCH_SECONDS": str(settings.redispatch_seconds),
        }

    def scheduler(self, name: str = "scheduler") -> None:
        self._start("scheduler", name)

    def worker(self, role: str, name: str, **environment: str) -> None:
        self._start(role, name, environment)

    def start_all(self, **environment: str) -> None:
        """A scheduler, an agent worker and a CPU worker, ready for work."""
        self.scheduler()
        self.worker("agent", "agent", **environment)
        self.worker("gpu", "gpu", **environment)
        self.wait_for_workers("agent", "gpu")

    def wait_for_workers(self, *names: str) -> None:
        def all_live() -> bool:
            with self.database.transaction() as session:
                live = {view.worker.name for view in cluster_overview(session).workers if view.live}
            return live >= set(names)

        wait_until(all_live, lambda: f"workers {names}; {self.log()}")

    def kill(self, name: str) -> None:
        """SIGKILL to the process, and to nothing below it."""
        process = self._running.pop(name)
        process.kill()
        process.join()

    def ask_to_stop(self, name: str) -> None:
        self._running[name].terminate()

    def wait_gone(self, name: str) -> int | None:
        process = self._running.pop(name)
        process.join(PATIENCE_SECONDS)
        return process.exitcode

    def children(self, name: str) -> list[psutil.Process]:
        return psutil.Process(self._running[name].pid).children(recursive=True)

    def stop(self) -> None:
        for process in self._running.values():
            for child in psutil.Process(process.pid).children(recursive=True) if process.is_alive() else []:
                child.kill()
            process.kill()
            process.join()

    def log(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._logs.iterdir()))

    def _start(self, role: str, name: str, environment: dict[str, str] | None = None) -> None:
        arguments = (role, name, self._environment | (environment or {}), self._logs / f"{name}.log")
        self._running[name] = process = FORKING.Process(target=run_role, args=arguments)
        process.start()
