"""A process of the service, forked: a scheduler, or a Celery worker with the test doubles.

The pool is none, so that no test here needs Chroma. ``CUPILOT_TEST_SLOW`` makes each call of the judge take so many
seconds (it can be cancelled meanwhile). ``CUPILOT_TEST_CARD`` is the uid of the card that a GPU worker claims to have;
without it, the worker has a CPU.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.settings import Settings, settings
from cupilot.storage.db.engine import Database
from tests.service.doubles import MemoryPool, ScriptedAgents, ScriptedJudge, device, strategy
from workers.__main__ import main
from workers.devices import StepCancelled
from workers.tools import Tools
from workers.worker import run_worker


class SlowJudge(ScriptedJudge):
    """Takes its time."""

    def _wait(self, _: str, cancelled: Callable[[], bool]) -> None:
        end = time.monotonic() + float(os.environ.get("CUPILOT_TEST_SLOW", "0"))
        while time.monotonic() < end:
            if cancelled():
                raise StepCancelled
            time.sleep(0.02)


class QuietPool(MemoryPool):
    """Answers like a pool, knows nothing."""

    def ping(self) -> None:
        """It is there."""


def scripted(config: Settings, database: Database, _: Device | None) -> Tools:
    judge, pool = SlowJudge(), QuietPool()
    players = ScriptedAgents([strategy(f"t{number}") for number in range(1, 9)])
    return Tools(
        settings=config,
        database=database,
        agents=lambda *_: players.agents(),
        judge=lambda: judge,
        pool=lambda: pool,  # type: ignore[arg-type,return-value]
    )


def served() -> Device:
    card = os.environ.get("CUPILOT_TEST_CARD")
    return device() if card is None else device(Target.CUDA, "sm_90", uid=card)


def run_role(role: str, name: str, environment: Mapping[str, str], log: Path) -> None:
    """Be the process of a role (``scheduler``, ``agent`` or ``gpu``), as if it had been started for it."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        if role == "scheduler":
            sys.argv = ["workers", "scheduler"]
            sys.exit(main())
        run_worker(settings(), served() if role == "gpu" else None, concurrency=1, name=name, tools=scripted)
    finally:
        atexit._run_exitfuncs()  # which a forked process does not
