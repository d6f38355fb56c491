"""A real Celery worker with the test doubles: ``python -m tests.service.worker_process agent|gpu NAME``.

The pool is none, so that no test here needs Chroma. ``CUPILOT_TEST_SLOW`` makes each call of the judge take so many
seconds (it can be cancelled meanwhile). ``CUPILOT_TEST_CARD`` is the uid of the card that a GPU worker claims to have;
without it, the worker has a CPU.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from cupilot.domain.hardware import Device
from cupilot.domain.problem import Target
from cupilot.settings import Settings, settings
from cupilot.storage.db.engine import Database
from tests.service.doubles import MemoryPool, ScriptedAgents, ScriptedJudge, device, strategy
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


if __name__ == "__main__":
    role, name = sys.argv[1:3]
    run_worker(settings(), served() if role == "gpu" else None, concurrency=1, name=name, tools=scripted)
