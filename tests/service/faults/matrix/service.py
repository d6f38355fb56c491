"""A whole service in real processes that can be hurt at will: servers, cuts, clocks, armed points, restarts.

Postgres and Valkey are real and can be killed; scheduler, API, agent workers and GPU workers are real processes (the
GPU workers' judge is a double, the model a scripted HTTP server). What died is started again, as a supervisor would.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import redis
from sqlalchemy import make_url, text

from cupilot.client import ApiError, Client
from cupilot.domain.errors import Unavailable
from cupilot.embedded import servers
from cupilot.embedded.process import Command
from cupilot.embedded.servers import Postgres, Running, start_valkey
from cupilot.schemas import JobRequest, JobView
from cupilot.storage.db.engine import Database
from cupilot.storage.people.teams import create_api_key, ensure_team
from migrations import upgrade
from tests.scripted_model import ScriptedModel
from tests.service.doubles import SOURCE
from tests.service.faults.matrix.clock import Clock
from tests.service.faults.matrix.messages import UNSENT, Inbox
from tests.service.faults.matrix.points import FOLDER, Act, Arms, Point
from tests.service.faults.matrix.proxy import Proxy
from tests.service.workers.test_models import competent

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 300.0
"""Longer than any recovery takes on a busy machine; what is not over by then has failed."""

LEASE_SECONDS = 5.0
WORKERS = {"agent-1": "agent", "agent-2": "agent", "gpu-1": "gpu", "gpu-2": "gpu"}


def wait_until(true: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll a condition; AssertionError where it does not come true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


class SteppedPostgres(Postgres):
    """Postgres that lives by a clock of ours."""

    clock: Clock

    def command(self) -> Command:
        """As always, with the preloaded clock."""
        command = super().command()
        return replace(command, environment={**command.environment, **self.clock.environment})


class Service:
    """One service in one folder."""

    def __init__(self, folder: Path, *, api: bool = True) -> None:
        self.folder = folder
        self.arms = Arms(folder / "arms")
        self.database_clock, self.workers_clock = Clock(folder, "database"), Clock(folder, "workers")
        SteppedPostgres.clock = self.database_clock
        self.postgres = servers._start(SteppedPostgres, folder / "postgres-data")
        self.valkey = start_valkey(folder / "valkey-data")
        upgrade(self.postgres.url)
        self.database = Database(self.postgres.url)
        self.database_link = Proxy(self.postgres.server.port)
        self.broker_link = Proxy(self.valkey.server.port)
        self.model = ScriptedModel(competent)
        self.model.__enter__()
        self._others = {child.pid for child in psutil.Process().children()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._roles: dict[str, str] = {}
        self._reviving = threading.Lock()
        self._stopped = False
        self._starts = 0
        self._port = _free_port()
        with self.database.transaction() as session:
            team = ensure_team(session, "faults")
            _, self.key = create_api_key(session, team, "faults")
            team_id = team.id
        self.inbox = Inbox(self.database, team_id)
        self.client = Client(f"http://127.0.0.1:{self._port}", self.key, retries=0)
        for name in ("scheduler", "webhooks", *(["api"] if api else [])):
            self.start(name, name)
        for name, role in WORKERS.items():
            self.start(name, role)
        self.wait_for_workers()

    # --- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str, role: str, *, prepare: Callable[[], None] | None = None) -> None:
        """Start a role; workers reach their servers over links that can be cut. ``prepare`` runs in the new process."""
        self._starts += 1
        self._roles[name] = role
        linked = role in ("agent", "gpu", "gpu-real")
        argv = [sys.executable, "-m", "tests.service.faults.matrix.process", role, f"{name}-{self._starts}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                argv,
                env=self.environment(linked=linked),
                preexec_fn=prepare,  # noqa: PLW1509 - nothing but system calls happens in it
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def environment(self, *, linked: bool) -> dict[str, str]:
        """The settings of its processes; ``linked``: over the links."""
        database, broker = make_url(self.postgres.url), make_url(self.valkey.url)
        if linked:
            database, broker = database.set(port=self.database_link.port), broker.set(port=self.broker_link.port)
        ours = {name: value for name, value in os.environ.items() if not name.startswith("CUPILOT_")}
        return {
            **ours,
            **self.workers_clock.environment,
            FOLDER: str(self.arms.folder),
            "CUPILOT_DATABASE_URL": database.render_as_string(hide_password=False),
            "CUPILOT_REDIS_URL": broker.render_as_string(hide_password=False),
            "CUPILOT_CHROMA_URL": "http://127.0.0.1:1",
            "CUPILOT_API_PORT": str(self._port),
            "CUPILOT_LEASE_SECONDS": str(LEASE_SECONDS),
            "CUPILOT_HEARTBEAT_SECONDS": "1",
            "CUPILOT_SCHEDULER_TICK_SECONDS": "0.2",
            "CUPILOT_REDISPATCH_SECONDS": "3",
            "CUPILOT_WEBHOOK_NETWORKS": "127.0.0.0/8",
            "CUPILOT_WEBHOOK_SECONDS": "3",
            # So short a lease is lost to a busy machine too, and that must not look like a fault's work.
            "CUPILOT_STEP_ATTEMPTS": "12",
            "CUPILOT_WORK_DIR": str(self.folder / "work"),
            "CUPILOT_LLM_MODEL": "openai/scripted",
            "CUPILOT_LLM_API_BASE": self.model.api_base,
            "CUPILOT_LLM_API_KEY": "unused",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def revive(self) -> int:
        """Start again what has ended, as a supervisor would; how many that were."""
        with self._reviving:
            if self._stopped:
                raise AssertionError("the service was stopped meanwhile")
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            for name in ended:
                self.start(name, self._roles[name])
            return len(ended)

    def stop_process(self, name: str) -> int:
        """Ask a process to end, wait until it has, and do not start it again; its exit status."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE_SECONDS)

    def exited(self, name: str) -> int | None:
        """The exit status of a process that is not to be started again, or None while it runs."""
        return self._processes[name].poll()

    def pid(self, name: str) -> int:
        """Process id of a part."""
        return self._processes[name].pid

    def wait_for_workers(self) -> None:
        """Until scheduler, API and all workers report themselves."""
        known = "SELECT count(*) FROM workers WHERE healthy AND heartbeat_at > now() - interval '3 seconds'"

        def up() -> bool:
            self.revive()
            with suppress(Unavailable):
                return int(self.rows(known)[0][0]) >= len(WORKERS)
            return False

        wait_until(up, f"all workers are up; {self.logs()}")

    # --- work ------------------------------------------------------------------------------------------------------

    def submit(self, number: int) -> UUID:
        """A small job whose agents ask the model, through the API where there is one."""
        request = JobRequest.model_validate(
            {
                "problem": {"name": f"fault {number}", "source": SOURCE + f"# {number}\n"},
                "target": "cpu",
                "agents": "llm",
                "method": {"population": 2, "generations": 2, "elites": 1},
                "seed": number,
            }
        )
        key, made = str(uuid4()), list[UUID]()

        def accepted() -> bool:
            self.revive()
            with suppress(ApiError):
                made.append(self.client.submit(request, idempotency_key=key).id)
            return bool(made)

        wait_until(accepted, f"the API takes a job; {self.logs()}")
        return made[0]

    def wait_final(self, job: UUID) -> JobView:
        """The job once it is final; whatever ends meanwhile is started again."""
        final: list[JobView] = []

        def ended() -> bool:
            self.revive()
            with suppress(ApiError):
                view = self.client.get(job)
                final[:] = [view] if view.final else []
            return bool(final)

        wait_until(ended, f"job {job} is final; {self.explain(job)}")
        return final[0]

    def wait_told(self, jobs: Sequence[UUID]) -> None:
        """Until every event of these jobs that the team's webhook wants has been delivered."""

        def told() -> bool:
            self.revive()
            with suppress(Unavailable):
                return not self.rows(UNSENT, jobs=list(jobs))
            return False

        wait_until(told, f"the team is told of {len(jobs)} jobs; {self.logs()}")

    def explain(self, job: UUID) -> str:
        """For a message: the job's open steps and the ends of the logs."""
        with suppress(Unavailable):
            query = "SELECT key, state, attempt, dispatches FROM steps WHERE job_id = :job AND finished_at IS NULL"
            return f"{self.rows(query, job=job)}\n{self.logs()}"
        return self.logs()

    def rows(self, query: str, **parameters: object) -> Sequence[Sequence[Any]]:
        """Rows of the database."""
        with self.database.transaction() as session:
            return [tuple(row) for row in session.execute(text(query), parameters)]

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1_500:]}" for path in self.folder.glob("*.log")
        )

    # --- hurting it ------------------------------------------------------------------------------------------------

    def strike(self, role: str, point: Point, act: Act, number: int) -> UUID:
        """Arm a point, submit a job, wait until it has struck; the job goes on."""
        self.arms.arm(role, point, act)
        job = self.submit(number)
        self.wait_struck(role, point)
        return job

    def wait_struck(self, role: str, point: Point, *, reviving: bool = False) -> list[int]:
        """Whom a point has struck; a point that nobody reaches is a failure. ``reviving`` starts again what ended."""

        def struck() -> bool:
            if reviving:
                self.revive()
            return bool(self.arms.struck(role, point))

        wait_until(struck, f"{role} reaches {point}; {self.logs()}")
        return self.arms.struck(role, point)

    def flush_broker(self) -> None:
        """Lose everything that the broker holds."""
        with redis.Redis.from_url(self.valkey.url) as broker:
            broker.flushall()

    def restart_broker(self, *, lose: bool) -> None:
        """SIGKILL the broker and start it again, with or without its file."""
        self.valkey.kill()
        if lose:
            shutil.rmtree(self.valkey.server.data / "appendonlydir", ignore_errors=True)
        self.valkey = start_valkey(self.valkey.server.folder.root)

    def restart_database(self) -> None:
        """SIGKILL the whole database server and start it again."""
        self.postgres.kill()
        self.postgres = servers._start(SteppedPostgres, self.postgres.server.folder.root)

    def awake(self, pids: Sequence[int]) -> None:
        """SIGCONT."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # --- what it leaves --------------------------------------------------------------------------------------------

    def orphans(self) -> list[str]:
        """Living processes that lost their parent and came to this one, which adopts orphans."""
        known = {os.getpid()} | self._others | {process.pid for process in self._processes.values()}
        known |= {running.process.pid for running in self._servers()}
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.pid not in known and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{child.pid} {' '.join(child.cmdline())[:200]}")
        return found

    def stop(self) -> list[str]:
        """Stop everything, asking first; processes that are left."""
        with self._reviving:  # another thread may be waiting for a job, and start again what is stopped here
            self._stopped = True
        self.client.close()
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.database.close()
        self.broker_link.close()
        self.database_link.close()
        for running in self._servers():
            running.stop()
        self.model.__exit__(None, None, None)
        self.inbox.close()
        with suppress(AssertionError):
            wait_until(lambda: not self.orphans(), "no process is left", 15.0)
        return self.orphans()

    def _servers(self) -> list[Running]:
        return [self.valkey, self.postgres]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
