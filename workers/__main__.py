"""``python -m workers scheduler | agent | gpu | webhooks``: the processes beside the API; ``health``: a probe of one of
them; ``rebuild-pool``: a repair; ``drain``, ``resume``, ``drains``: before and after an upgrade.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from itertools import chain
from pathlib import Path
from types import FrameType

from cupilot.domain.errors import CupilotError, Unavailable
from cupilot.domain.problem import Target
from cupilot.production import check_environment, check_model_urls
from cupilot.settings import Settings, settings
from cupilot.tracing import set_up_tracing
from workers.logs import set_up_logs
from workers.operator import add_commands

logger = logging.getLogger("workers")

ROLES = ("scheduler", "webhooks", "agent", "gpu")
"""Long-running processes; the other words are commands."""


def main() -> int:
    """Run the command line and return the exit status."""
    arguments = _parser().parse_args()
    try:
        if arguments.role == "health":
            return _health(settings())
        set_up_logs()
        _check(settings(), arguments.role)
        if arguments.role == "scheduler":
            _run_scheduler(settings())
        elif arguments.role == "webhooks":
            _run_webhooks(settings())
        elif arguments.role == "rebuild-pool":
            _rebuild_pool(settings())
        elif arguments.role in ("drain", "resume", "drains"):
            return _command(arguments)
        else:
            _run_worker(settings(), arguments)
    except CupilotError as error:
        logger.error("%s %s", error.message, error.hint or "")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("scheduler", help="relay, dispatch, reap; any number may run, one is in charge")
    roles.add_parser("webhooks", help="send events to the teams' webhooks; any number may run")
    roles.add_parser("health", help="whether the process that writes CUPILOT_HEALTH_FILE makes progress: exit 0 or 1")
    agent = roles.add_parser("agent", help="steps that need agents: strategies, kernels, repairs")
    roles.add_parser("rebuild-pool", help="make the strategy pool's index in Chroma anew from Postgres, and end")
    add_commands(roles)
    gpu = roles.add_parser("gpu", help="steps that need a device; one worker a device")
    gpu.add_argument("--target", type=Target, choices=list(Target), default=Target.CUDA, help="what kernels run on")
    gpu.add_argument("--device", metavar="UUID", help="which GPU; needed where there are several")
    for worker in (agent, gpu):
        worker.add_argument("--name", help="unique name of this worker; made from host and process id by default")
    agent.add_argument("--concurrency", type=int, default=1, help="steps at a time; more for agents that call models")
    gpu.set_defaults(concurrency=1)
    return parser


def _command(arguments: argparse.Namespace) -> int:
    from cupilot.storage.db.engine import database
    from workers.operator import run_command

    return run_command(arguments, database())


def _check(config: Settings, role: str) -> None:
    """Refuse to start a role of production with an unsafe environment."""
    if config.environment != "production" or role not in ROLES:
        return
    check_environment(role, os.environ)
    if role == "agent":
        from agents.llm.models import from_environment

        roles = from_environment()
        models = [*roles.default, *chain.from_iterable(roles.roles.values())] if roles else []
        check_model_urls(model.api_base for model in models if model.api_base)


def _health(config: Settings) -> int:
    from cupilot.health import check

    healthy, sentence = check(config.health_file, config.health_seconds)
    sys.stdout.write(f"{sentence}\n")
    return 0 if healthy else 1


def _run_scheduler(config: Settings) -> None:
    from cupilot.storage.db.engine import database
    from workers.app import make_app
    from workers.relay import Relay
    from workers.scheduler import Scheduler

    set_up_tracing(config.traces, "scheduler")
    Scheduler(config, database(), Relay(database(), make_app(config))).run(_stop_on_signal())


def _run_webhooks(config: Settings) -> None:
    from cupilot.storage.db.engine import Database
    from workers.webhooks.deliverer import THREADS, Deliverer

    opened = Database(config.database_url.get_secret_value(), settings=config, pool_size=THREADS)
    Deliverer(config, opened).run(_stop_on_signal())


def _stop_on_signal() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    return stop


def _rebuild_pool(config: Settings) -> None:
    from cupilot.storage.db.engine import database

    try:
        from workers.indexing import rebuild_pool
        from workers.tools import make_tools

        indexed = rebuild_pool(make_tools(config, database(), None))
    except ModuleNotFoundError as error:
        hint = "run it where an agent worker runs, or: pip install 'cupilot[agents]'"
        raise Unavailable(f"{error.name} is not installed here", hint=hint) from error
    logger.info("indexed %d entries", indexed)


def _run_worker(config: Settings, arguments: argparse.Namespace) -> None:
    from workers.devices import check_work_folder, find_device
    from workers.worker import run_worker

    if arguments.role == "gpu":
        check_work_folder(Path(config.work_dir))
    device = find_device(arguments.target, arguments.device) if arguments.role == "gpu" else None
    run_worker(config, device, concurrency=arguments.concurrency, name=arguments.name)


if __name__ == "__main__":
    sys.exit(main())
