"""cuPilot's own processes in the embedded stack: each one's command, environment and readiness check.

The roles are those of production; here they only get this stack's URLs. Nothing here starts a process.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cupilot.domain.redaction import SECRET_NAME
from cupilot.embedded.devices import Gpu
from cupilot.embedded.folder import Folder
from cupilot.embedded.models import MODEL_VARIABLES
from cupilot.embedded.process import Command
from cupilot.health import last_beat
from cupilot.settings import Settings

_OF_THE_API = "CUPILOT_OIDC_CLIENT_SECRET"
"""The one setting that no process but the API needs: agents and GPU workers run what models wrote."""
_OURS = frozenset(f"CUPILOT_{name.upper()}" for name in Settings.model_fields) - {_OF_THE_API}
"""The service's own settings, which a process needs whatever they are called: ``CUPILOT_RATE_LIMIT_KEY`` is a number,
and without its ``CUPILOT_METRICS_TOKEN`` the API would leave ``/metrics`` open."""
_GPU_WORKER_SEES = re.compile(
    r"(CUDA_|NVIDIA_|OMP_|CUPILOT_|OTEL_EXPORTER_OTLP_ENDPOINT|PYTHON|LC_)|(PATH|HOME|USER|LANG|TMPDIR|TZ|LD_LIBRARY_PATH)$"
)
MODEL_CALLS = 8
"""Default number of steps at a time of an agent worker that calls models: it mostly waits for answers."""
_VIEW_SECONDS = 0.15
"""Roles that start together share one look at the cluster."""

_DATABASE = ("sqlalchemy.orm", "psycopg2", "pydantic_settings")
_CELERY = ("celery.apps.worker", "celery.concurrency.prefork", "kombu.transport.redis", "redis")


class Cluster:
    """Client of the stack's API that reads the cluster's state."""

    def __init__(self, url: str, key_file: Path) -> None:
        self._address = urlsplit(url).netloc
        self._key_file = key_file
        self._lock = threading.Lock()
        self._view: dict[str, Any] = {}
        self._seen = 0.0

    def api_is_ready(self) -> bool:
        """Return whether the API serves requests."""
        return self._get("/readyz") is not None

    def version(self) -> str | None:
        """Return the release that serves, None where the API does not answer."""
        return (self._get("/v1/version") or {}).get("version")

    def view(self) -> dict[str, Any]:
        """Return ``GET /v1/cluster``, at most 0.15 s old; empty while the API does not answer."""
        with self._lock:
            if time.monotonic() - self._seen > _VIEW_SECONDS:
                self._view = self._get("/v1/cluster") or {}
                self._seen = time.monotonic()
            return self._view

    def _get(self, path: str) -> dict[str, Any] | None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self._address, timeout=5)
            with closing(connection):
                connection.request("GET", path, headers={"Authorization": f"Bearer {self._key()}"})
                response = connection.getresponse()
                body: dict[str, Any] = json.loads(response.read())
                return body if response.status == 200 else None
        return None

    def _key(self) -> str:
        return self._key_file.read_text().strip()


class Role:
    """A process that runs cuPilot's code behind a gate (:mod:`cupilot.embedded.launch`)."""

    ready_seconds = 90.0
    """2 s on two idle cores; machines that were busy, or compiled every import first, took ten times that."""
    recovers = False
    stop_seconds = 8.0
    """A step that is cut off is leased out again at the next start: nothing is lost, only repeated."""

    def __init__(self, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self._argv = argv
        self._environment = environment

    def prepare(self) -> None:
        """Do nothing: a role keeps nothing of its own between starts."""

    def recovery_seconds(self) -> float:
        """Return 0: a role that ends at its start has failed."""
        return 0.0

    def command(self) -> Command:
        """Return the command, run from the root folder and with ``-P``.

        Nothing in a user's folder may shadow a module.
        """
        return Command([sys.executable, "-P", *self._argv], self._environment, Path("/"))


class Schema(Role):
    """One-shot: schema to head, API key valid."""

    ready_seconds = 3600.0
    """A migration may rewrite tables and build indexes of everything that there ever was."""

    def __init__(self, folder: Folder, settings: dict[str, str]) -> None:
        argv = ["-m", "cupilot.embedded.schema", str(folder.api_key)]
        super().__init__("schema", argv, without_secrets(environment(settings)))

    def is_ready(self) -> bool:
        """Return False: it ends instead."""
        return False


class Api(Role):
    """The REST API."""

    def __init__(self, settings: dict[str, str], cluster: Cluster) -> None:
        argv = _launch("api", preload=["uvicorn", *_DATABASE, "api.app"])
        seen = environment(settings)
        client = {name: value for name, value in seen.items() if name == _OF_THE_API}
        super().__init__("api", argv, without_secrets(seen) | client)
        self._cluster = cluster

    def is_ready(self) -> bool:
        """Return whether it serves requests."""
        return self._cluster.api_is_ready()


class Scheduler(Role):
    """The one scheduler."""

    def __init__(self, settings: dict[str, str], cluster: Cluster) -> None:
        argv = _launch("workers", "scheduler", preload=[*_CELERY, *_DATABASE, "workers.scheduler"])
        super().__init__("scheduler", argv, without_secrets(environment(settings)))
        self._cluster = cluster

    def is_ready(self) -> bool:
        """Return whether it holds its lock and ticks."""
        return bool(self._cluster.view().get("scheduler_alive"))


class Worker(Role):
    """An agent worker or a GPU worker."""

    def __init__(
        self, name: str, arguments: Sequence[str], seen: dict[str, str], cluster: Cluster, device: str | None = None
    ) -> None:
        preload = [*_CELERY, *_DATABASE, "workers.worker"]
        super().__init__(name, _launch("workers", *arguments, preload=preload), seen)
        self._kind = arguments[0]
        self._device = device
        self._cluster = cluster
        self._started = 0.0

    def command(self) -> Command:
        """Return the command; note the time, to tell this process's report from its predecessor's."""
        self._started = time.time()
        return super().command()

    def is_ready(self) -> bool:
        """Return whether a worker of this kind and device that was started since then reports itself."""
        return any(
            worker["kind"] == self._kind
            and worker["alive"]
            and datetime.fromisoformat(worker["started_at"]).timestamp() >= self._started
            and (self._device is None or (worker["device"] or {}).get("uid") == self._device)
            for worker in self._cluster.view().get("workers", [])
        )


class Webhooks(Role):
    """Sends events to the teams' webhooks. It is ready once its loop has come round."""

    def __init__(self, folder: Folder, settings: dict[str, str]) -> None:
        super().__init__("webhooks", ["-m", "workers", "webhooks"], without_secrets(environment(settings)))
        self._pulse = folder.pulse(self.name)
        self._started = 0.0

    def command(self) -> Command:
        """Return the command; note the time, to tell this process's sign of progress from its predecessor's."""
        self._started = time.monotonic()
        return super().command()

    def is_ready(self) -> bool:
        """Return whether it has left a sign of progress since it was started."""
        beat = last_beat(self._pulse)
        return beat is not None and beat >= self._started


def make_workers(
    folder: Folder, settings: dict[str, str], cluster: Cluster, gpus: Sequence[Gpu], model_calls: int | None
) -> list[Scheduler | Worker]:
    """Return scheduler, agent worker and one GPU worker for each card; one for the CPU where there is no card.

    The agent worker asks models ``model_calls`` things at a time, by default :data:`MODEL_CALLS` where the environment
    names one, and does one step besides, which asks none. Without a model it does one step: the playbook computes, on
    cores that CPU kernels are timed on. Only the agent worker, which calls models, sees secrets that are not the
    stack's own.
    """
    own = {name: value for name, value in environment(settings).items() if name != _OF_THE_API}
    gpu_sees = {name: value for name, value in without_secrets(own).items() if _GPU_WORKER_SEES.match(name)}
    calls = model_calls or (MODEL_CALLS if any(own.get(name) for name in MODEL_VARIABLES) else 0)
    agent = Worker("agent", ["agent", "--concurrency", str(calls + 1)], own, cluster)
    workers: list[Scheduler | Worker] = [Scheduler(settings, cluster), agent]
    if not gpus:
        workers.append(Worker("gpu-cpu", ["gpu", "--target", "cpu"], gpu_sees, cluster))
    for gpu in gpus:
        arguments = ["gpu", "--target", "cuda", "--device", gpu.uuid]
        sees = gpu_sees | {"CUPILOT_WORK_DIR": str(folder.work / f"gpu{gpu.index}")}
        workers.append(Worker(f"gpu-{gpu.index}", arguments, sees, cluster, gpu.uuid))
    return workers


def stack_settings(folder: Folder, api_port: int, postgres: str, valkey: str, chroma: str) -> dict[str, str]:
    """Return the settings that tell cuPilot's processes where this stack is; the arguments after the port are URLs."""
    return {
        "CUPILOT_DATABASE_URL": postgres,
        "CUPILOT_REDIS_URL": valkey,
        "CUPILOT_CHROMA_URL": chroma,
        "CUPILOT_API_HOST": "127.0.0.1",
        "CUPILOT_API_PORT": str(api_port),
        "CUPILOT_WORK_DIR": str(folder.work),
    }


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with the stack's settings.

    Bytecode is always written: without it each start imports for twice as long. No proxy stands before the servers.
    """
    unwanted = {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONSTARTUP"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    direct = ",".join(
        filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1", "localhost"])
    )
    return kept | {"PYTHONUNBUFFERED": "1", "NO_PROXY": direct, "no_proxy": direct} | settings


def without_secrets(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables for processes that call no model.

    None with a secret-looking name, except our own settings.
    """
    return {name: value for name, value in variables.items() if name in _OURS or not SECRET_NAME.search(name)}


def _launch(module: str, *arguments: str, preload: Sequence[str]) -> list[str]:
    return [str(Path(__file__).with_name("launch.py")), module, ",".join(preload), *arguments]
