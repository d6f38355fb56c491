"""A real embedded stack under test: started, hurt, asked what it did, and searched for what it left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import psutil
import redis
from sqlalchemy import create_engine, text

from cupilot.client import Client
from cupilot.domain.problem import Target
from cupilot.embedded import stack as embedded
from cupilot.embedded.report import PartState
from cupilot.schemas import JobRequest, JobView

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_SECONDS = 500.0
"""Until something must have happened; two busy cores are slow, and a timeout here is a failure, not a measurement."""


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that none can hide behind process 1."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait_until(true: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def ran_through(job: JobView) -> bool:
    """Return whether a job did all of its work.

    On a machine too busy for steady timing the judge may find no kernel that it can vouch for; that is a result too.
    """
    if job.state == "succeeded":
        return job.best is not None
    return job.reason == "no_valid_kernel" and sum(job.verdicts.values()) > 0


class Stack:
    """The stack of one data folder on the ``cpu`` target."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._others = {child.pid for child in psutil.Process().children()}
        endpoint = embedded.up(data, foreground=False, target=Target.CPU, on_progress=lambda _: None)
        self.client = Client(endpoint.url, endpoint.api_key, retries=30)
        self.supervisor = embedded.status(data).supervisor
        assert self.supervisor is not None
        environment = psutil.Process(self.pid("api")).environ()
        self._database = create_engine(environment["CUPILOT_DATABASE_URL"], pool_pre_ping=True)
        self._redis_url = environment["CUPILOT_REDIS_URL"]

    # --- what it is made of ----------------------------------------------------------------------------------------

    def parts(self) -> list[str]:
        """Names of its lasting parts."""
        return [part.name for part in embedded.status(self.data).parts if part.state is not PartState.DONE]

    def pid(self, part: str) -> int:
        """Process id of a part that is up now, waiting for one that is coming back."""
        found: list[int] = []

        def up() -> bool:
            now = {item.name: item for item in embedded.status(self.data).parts}[part]
            found[:] = [now.pid] if now.pid and now.state is PartState.READY else []
            return bool(found)

        wait_until(up, f"{part} is up")
        return found[0]

    def all_ready(self) -> bool:
        """Return whether every part does its work."""
        status = embedded.status(self.data)
        return status.running and all(part.state in (PartState.READY, PartState.DONE) for part in status.parts)

    # --- hurting it ------------------------------------------------------------------------------------------------

    def kill(self, part: str) -> None:
        """``kill -9`` of a part's own process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid(part), signal.SIGKILL)

    def kill_descendant(self, part: str, rng: Random) -> bool:
        """``kill -9`` of any process below a part's; False where there is none now."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            below = psutil.Process(self.pid(part)).children(recursive=True)
            if below:
                rng.choice(sorted(below, key=lambda process: process.pid)).kill()
                return True
        return False

    def flush_redis(self) -> bool:
        """Lose everything that the broker holds; False where it does not answer now."""
        with suppress(redis.RedisError), redis.Redis.from_url(self._redis_url, socket_timeout=5) as server:
            return bool(server.flushall())
        return False

    # --- work ------------------------------------------------------------------------------------------------------

    def submit(self, **fields: object) -> UUID:
        """Start a job."""
        return self.client.submit(JobRequest.model_validate(fields)).id

    def wait(self, job: UUID) -> JobView:
        """The job once it is final."""
        final: list[JobView] = []

        def ended() -> bool:
            view = self.client.get(job)
            final[:] = [view] if view.final else []
            return view.final

        wait_until(ended, f"job {job} is final")
        return final[0]

    def rows(self, query: str, **parameters: object) -> Sequence[tuple[object, ...]]:
        """Rows of the stack's database."""
        with self._database.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), parameters)]

    # --- what it leaves --------------------------------------------------------------------------------------------

    def orphans(self) -> list[str]:
        """Living processes that lost their parent and came to us."""
        mine = {os.getpid(), self.supervisor} | self._others
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.pid not in mine and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{child.pid} {' '.join(child.cmdline())[:200]}")
        return found

    def down(self) -> None:
        """Stop it, and fail if anything of it stays."""
        self.client.close()
        self._database.dispose()
        embedded.down(self.data)
        wait_until(lambda: not self.orphans(), f"nothing is left, but: {self.orphans()}", 20.0)
        assert not psutil.pid_exists(self.supervisor or 0) or self._is_zombie(self.supervisor or 0)

    def _is_zombie(self, pid: int) -> bool:
        with suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        return True
