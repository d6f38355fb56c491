"""Real processes of the service with the test doubles: started, killed, told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.cluster import cluster_overview

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90.0
"""No measure of anything: a test that waits for so long has failed."""


def wait_until(true: Callable[[], object], what: str) -> None:
    """Return as soon as it is true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


class Processes:
    """The processes of one service."""

    def __init__(self, settings: Settings, database: Database, logs: Path) -> None:
        self.database = database
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "CUPILOT_DATABASE_URL": settings.database_url.get_secret_value(),
            "CUPILOT_REDIS_URL": settings.redis_url.get_secret_value(),
            "CUPILOT_LEASE_SECONDS": str(settings.lease_seconds),
            "CUPILOT_HEARTBEAT_SECONDS": str(settings.heartbeat_seconds),
            "CUPILOT_SCHEDULER_TICK_SECONDS": str(settings.scheduler_tick_seconds),
            "CUPILOT_REDISPATCH_SECONDS": str(settings.redispatch_seconds),
        }

    def scheduler(self, name: str = "scheduler") -> None:
        self._start(name, ["workers", "scheduler"])

    def worker(self, role: str, name: str, **environment: str) -> None:
        self._start(name, ["tests.service.worker_process", role, name], environment)

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

        wait_until(all_live, f"workers {names}; {self.log()}")

    def kill(self, name: str) -> None:
        """SIGKILL to the process, and to nothing below it."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def ask_to_stop(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGTERM)

    def wait_gone(self, name: str) -> int:
        return self._running.pop(name).wait(PATIENCE_SECONDS)

    def children(self, name: str) -> list[psutil.Process]:
        return psutil.Process(self._running[name].pid).children(recursive=True)

    def stop(self) -> None:
        for process in self._running.values():
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                child.kill()
            process.kill()
            process.wait()

    def log(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._logs.iterdir()))

    def _start(self, name: str, module: list[str], environment: dict[str, str] | None = None) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *module],
                env=self._environment | (environment or {}),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
