"""A real process of the service with points to die at: ``python -m tests.service.faults.matrix.process ROLE NAME``.

Scheduler, API and agents are production's own, wrapped at their boundaries. The judge of the ``gpu`` role is a double
that takes its time; agents ask whatever model the environment names. ``gpu-real`` measures for real and is not wrapped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import workers.scheduler
import workers.steps
import workers.tasks
import workers.webhooks.deliverer
from cupilot.domain.hardware import Device
from cupilot.settings import Settings, settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.webhooks import WebhookPosition
from tests.service.doubles import MemoryPool, ScriptedJudge, device
from tests.service.faults.matrix.messages import LEASE_MARGIN_SECONDS
from tests.service.faults.matrix.points import Point, reached
from workers.handlers.handler import Handler
from workers.tools import Tools, make_tools


class QuietPool(MemoryPool):
    """Answers like a pool, knows nothing."""

    def ping(self) -> None:
        """It is there."""


def main() -> None:
    """Run the role until it is told to stop, or until a point strikes."""
    role, name = sys.argv[1:3]
    if role == "scheduler":
        _wrap_scheduler()
        sys.argv = ["workers", "scheduler"]
        workers_main()
    elif role == "webhooks":
        _wrap_webhooks()
        sys.argv = ["workers", "webhooks"]
        workers_main()
    elif role == "gpu-real":
        sys.argv = ["workers", "gpu", "--target", "cpu", "--name", name]
        workers_main()
    elif role == "api":
        _run_api()
    else:
        _run_worker(role, name)


def workers_main() -> None:
    """``python -m workers`` with the arguments that are set."""
    from workers.__main__ import main as run

    sys.exit(run())


def _run_worker(role: str, name: str) -> None:
    from workers.worker import run_worker

    _wrap_steps(role)
    judge, pool = ScriptedJudge(), QuietPool()

    def tools(config: Settings, database: Database, where: Device | None) -> Tools:
        made = make_tools(config, database, None)
        doubles = {"judge": lambda: judge} if where else {}
        return replace(made, pool=lambda: pool, **doubles)  # type: ignore[arg-type]

    run_worker(settings(), device() if role == "gpu" else None, concurrency=1, name=name, tools=tools)


def _wrap_steps(role: str) -> None:
    run_step, do = workers.tasks.run_step, workers.steps.run_claimed

    def whole(*arguments: Any) -> None:
        reached(role, Point.BEFORE_CLAIM)
        run_step(*arguments)
        reached(role, Point.BEFORE_ACK)

    def claimed(*arguments: Any) -> str:
        reached(role, Point.AFTER_CLAIM)
        return do(*arguments)

    workers.tasks.run_step = whole
    workers.steps.run_claimed = claimed
    workers.steps.HANDLERS = {kind: _wrap_handler(role, handler) for kind, handler in workers.steps.HANDLERS.items()}
    _wrap_ledger(role)


def _wrap_handler(role: str, handler: Handler[Any, Any]) -> Handler[Any, Any]:
    def work(*arguments: Any) -> Any:
        reached(role, Point.DURING_WORK)
        result = handler.work(*arguments)
        reached(role, Point.BEFORE_STORE)
        return result

    def store(session: Any, *arguments: Any) -> None:
        handler.store(session, *arguments)
        session.flush()
        reached(role, Point.IN_STORE)

    return replace(handler, work=work, store=store)


def _wrap_ledger(role: str) -> None:
    from workers.ledger import StepLedger

    _after(StepLedger, "begin", lambda known: reached(role, Point.CALL_RECORDED) if known is None else None)
    answered = StepLedger.answered

    def store_answer(self: StepLedger, *arguments: Any, **named: Any) -> Any:
        reached(role, Point.CALL_PAID)
        stored = answered(self, *arguments, **named)
        reached(role, Point.CALL_STORED)
        return stored

    StepLedger.answered = store_answer  # type: ignore[method-assign]


def _wrap_scheduler() -> None:
    dispatch = workers.scheduler.dispatch

    def dispatched(*arguments: Any) -> None:
        dispatch(*arguments)
        reached("scheduler", Point.AFTER_DISPATCH)

    workers.scheduler.dispatch = dispatched
    publish = workers.scheduler.Relay._publish

    def published(self: Any, message: Any) -> None:
        reached("scheduler", Point.BEFORE_PUBLISH)
        publish(self, message)
        reached("scheduler", Point.AFTER_PUBLISH)

    workers.scheduler.Relay._publish = published  # type: ignore[method-assign]
    _after(workers.scheduler.Scheduler, "tick", lambda _: reached("scheduler", Point.AFTER_TICK))


def _wrap_webhooks() -> None:
    deliverer = workers.webhooks.deliverer
    deliverer.LEASE_MARGIN_SECONDS = LEASE_MARGIN_SECONDS
    send = deliverer.post

    def sent(*arguments: Any, **named: Any) -> Any:
        reached("webhooks", Point.MESSAGE_CLAIMED)
        result = send(*arguments, **named)
        reached("webhooks", Point.MESSAGE_SENT)
        return result

    deliverer.post = sent
    fan_out = deliverer.fan_out

    def fanned_out(session: Any) -> bool:
        more: bool = fan_out(session)
        if any(isinstance(row, WebhookPosition) for row in session.dirty):  # there was something to tell
            session.flush()
            reached("webhooks", Point.IN_FAN_OUT)
        return more

    deliverer.fan_out = fanned_out
    record = deliverer.record

    def recorded(session: Any, *arguments: Any, **named: Any) -> Any:
        why = record(session, *arguments, **named)
        session.flush()
        reached("webhooks", Point.IN_RECORD)
        return why

    deliverer.record = recorded


def _run_api() -> None:
    import api.__main__
    import cupilot.jobs.submission

    _after(cupilot.jobs.submission, "submit_job", lambda _: reached("api", Point.IN_SUBMIT))
    make = api.__main__.create_app

    def create_app(config: Settings) -> Any:
        app = make(config)

        async def before_the_answer(scope: Any, receive: Any, send: Any) -> None:
            async def answer(message: Any) -> None:
                if message["type"] == "http.response.start" and message["status"] == 202:
                    reached("api", Point.BEFORE_ANSWER)
                await send(message)

            await app(scope, receive, answer)

        return before_the_answer

    api.__main__.create_app = create_app  # type: ignore[assignment]
    api.__main__.main()


def _after(owner: Any, name: str, then: Callable[[Any], None]) -> None:
    """Wrap a function so that something looks at each of its results."""
    whole = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = whole(*arguments, **named)
        then(result)
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    main()
