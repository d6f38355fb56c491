"""A Celery worker: a parent process that registers itself, and children that run one step at a time each.

The parent imports neither torch nor CUDA, and opens no device: the judge lives in the child and its subprocesses.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from celery import signals
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning

from cupilot.domain.errors import CupilotError
from cupilot.domain.hardware import Device
from cupilot.domain.states import WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.queue.steps import AGENTS_QUEUE, MODELS_QUEUE, device_queue
from cupilot.tracing import set_up_tracing
from workers.app import make_app
from workers.draining import Draining
from workers.logs import set_up_logs
from workers.presence import Presence, Worker
from workers.tasks import register_tasks, steps_at_work
from workers.tools import Tools, make_tools

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PARENT_CONNECTIONS = 1
"""Database connections that the parent keeps; it may open as many again while they are busy."""
CHILD_CONNECTIONS = 2
"""The same of each child."""
STOP_SECONDS = 30.0
"""Time in which a worker that ends itself may release its steps."""

MakeTools = Callable[[Settings, Database, Device | None], Tools]


def run_worker(
    settings: Settings,
    device: Device | None,
    *,
    concurrency: int,
    name: str | None = None,
    tools: MakeTools = make_tools,
) -> None:
    """Run an agent worker, or the GPU worker of a device, until SIGTERM. ``tools`` is called in each child."""
    kind = WorkerKind.AGENT if device is None else WorkerKind.GPU
    queues = agent_queues() if device is None else [device_queue(device)]
    name = name or f"{kind.value}-{socket.gethostname()}-{os.getpid()}"
    url = settings.database_url.get_secret_value()
    worker = Worker(name, kind, queues, concurrency, device)
    draining = Draining()
    own = Database(url, settings=settings, pool_size=PARENT_CONNECTIONS)
    presence = Presence(
        settings, own, worker, end_process=_end_this_process, close_intake=draining.close, at_work=steps_at_work
    )

    @cache
    def child_tools() -> Tools:
        set_up_tracing(settings.traces, kind.value)
        return tools(settings, Database(url, settings=settings, pool_size=CHILD_CONNECTIONS), device)

    app = make_app(settings, kind)
    register_tasks(app, name, child_tools, draining)
    _connect_signals(presence, draining, child_tools, kind)
    presence.take_card()
    if kind is WorkerKind.AGENT:
        _import_for_children(models=MODELS_QUEUE in queues)
    # Running as root is a danger with pickled messages; these are JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # Advises to cancel steps when the broker is lost; workers.app says why not to.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    arguments = ["--quiet", "worker", "--pool=prefork", f"--concurrency={concurrency}", f"--queues={','.join(queues)}"]
    arguments += [f"--hostname={name}@%h", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    presence.start()
    app.worker_main(arguments)


def agent_queues() -> list[str]:
    """Return the queues of an agent worker: steps of models only where its environment names one."""
    from agents.llm.models import from_environment

    return [AGENTS_QUEUE] if from_environment() is None else [AGENTS_QUEUE, MODELS_QUEUE]


def _connect_signals(presence: Presence, draining: Draining, tools: Callable[[], Tools], kind: WorkerKind) -> None:
    """Connect Celery's signals; ``weak=False`` keeps the receivers alive."""

    def set_up_logging(**_: Any) -> None:
        set_up_logs()

    def child_begins(**_: Any) -> None:
        _die_with_parent()
        threading.Thread(target=_preload, args=[tools(), kind], name="preload", daemon=True).start()

    def ready(**_: Any) -> None:
        presence.begin()

    def shutting_down(**_: Any) -> None:
        draining.begin()

    def shut_down(**_: Any) -> None:
        presence.end()

    signals.setup_logging.connect(set_up_logging, weak=False)
    signals.worker_process_init.connect(child_begins, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_shutdown.connect(shut_down, weak=False)


def _end_this_process() -> None:
    """Send SIGTERM, and SIGKILL where the consumer does not react to it in time."""
    os.kill(os.getpid(), signal.SIGTERM)
    forced = threading.Timer(STOP_SECONDS, os.kill, [os.getpid(), signal.SIGKILL])
    forced.daemon = True
    forced.start()


def _die_with_parent() -> None:
    """Ask the kernel to kill this child when its parent dies, which alone could stop it; its step is reaped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _import_for_children(*, models: bool) -> None:
    """Import what steps of agents need, before the pool forks: children share its memory, and none waits for it."""
    import agents.playbook
    import cupilot.storage.pool.index  # noqa: F401

    if models:
        import agents.llm.assembly  # noqa: F401
        from agents.llm.transport import litellm

        litellm()
    gc.freeze()  # a collection in a child would write to what it shares


def _preload(tools: Tools, kind: WorkerKind) -> None:
    """Connect what the first step would otherwise wait for."""
    try:
        tools.database.ready()
        if kind is WorkerKind.AGENT:
            tools.pool().ping()
    except CupilotError as error:
        logger.info("not preloaded: %s", error)
