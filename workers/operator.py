"""Operators' commands: ``python -m workers drain | resume | drains``.

Draining stops nothing that runs (:mod:`cupilot.storage.queue.drains`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from sqlalchemy.orm import Session

from cupilot.storage.db.changes import changes, watch
from cupilot.storage.db.engine import Database
from cupilot.storage.people.audit import add_own_entry
from cupilot.storage.queue.drains import SERVICE, DrainView, begin_drain, drains, end_drain, running_in

NOT_DRAINED = 3
"""Exit status where steps still ran when the time to wait was over, or the drain had been ended."""
LOOK_SECONDS = 0.5


def add_commands(roles: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""
    drain = roles.add_parser("drain", help="let the service, or one worker, finish what runs and take nothing new")
    drain.add_argument("worker", nargs="?", default=SERVICE, help="the whole service where none is named")
    drain.add_argument("--reason", default="drained by an operator", help="shown in the cluster's status")
    drain.add_argument(
        "--wait", type=float, metavar="SECONDS", help="until nothing runs any more; exit 3 if not by then"
    )
    drain.add_argument(
        "--until-restart",
        action="store_true",
        help="end the drain when a worker of this name starts; one that is there already stays as it is",
    )
    resume = roles.add_parser("resume", help="end a drain")
    resume.add_argument("worker", nargs="?", default=SERVICE, help="the whole service where none is named")
    roles.add_parser("drains", help="what is drained, as JSON lines")


def run_command(arguments: argparse.Namespace, database: Database) -> int:
    """Run a command and return the exit status."""
    if arguments.role == "drain":
        return _drain(arguments, database)
    with database.transaction() as session:
        if arguments.role == "resume":
            watch(session)
            ended = end_drain(session, arguments.worker)
            _audit(session, arguments)
            _print({"scope": arguments.worker, "resumed": ended})
        else:
            for view in drains(session):
                _print(_shown(view))
    return 0


def _drain(arguments: argparse.Namespace, database: Database) -> int:
    with database.transaction() as session:
        watch(session)
        begin_drain(session, arguments.worker, arguments.reason, until_restart=arguments.until_restart)
        _audit(session, arguments)
    deadline = time.monotonic() + (arguments.wait or 0.0)
    while True:
        with database.transaction() as session:
            view = next((drain for drain in drains(session) if drain.scope == arguments.worker), None)
            running = running_in(session, arguments.worker)
        if view is None or running == 0 or time.monotonic() >= deadline:
            break
        time.sleep(LOOK_SECONDS)
    # Without a drain: somebody resumed the worker, or it started again.
    _print(_shown(view) if view else {"scope": arguments.worker, "ended": True, "running": running})
    return NOT_DRAINED if arguments.wait is not None and running else 0


def _audit(session: Session, arguments: argparse.Namespace) -> None:
    add_own_entry(
        session, "operator", "COMMAND", f"workers {arguments.role}", arguments.worker, changes=changes(session)
    )


def _shown(view: DrainView) -> dict[str, Any]:
    return {
        "scope": view.scope,
        "reason": view.reason,
        "since": view.since.isoformat(),
        "running": view.running,
        "drained": view.running == 0,
    }


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
