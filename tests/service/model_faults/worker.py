"""An agent worker whose steps can be killed: ``python -m tests.service.model_faults.worker API_BASE``.

As in production a parent, which has imported everything, forks processes for the work: one for each attempt that may
die, and one that lasts for all others. Orders come as JSON lines on stdin; on stdout the processes say which calls they
make and where they die. The model stack, the ledger and the steps are production's own; the judge and the pool are not
needed here.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import IO, Any

from sqlalchemy.orm import configure_mappers

import agents.llm.gateway
import workers.steps
from agents.llm.assembly import hybrid, llm
from agents.llm.gateway import Gateway
from agents.llm.models import Model, RoleModels
from agents.llm.transport import TransportError, complete, parameters
from cupilot.domain.job import AgentKind
from cupilot.domain.model_call import Answer, Call
from cupilot.domain.technique import catalogue
from cupilot.settings import settings
from cupilot.storage.db.engine import Database
from tests.service.doubles import MemoryPool, ScriptedJudge
from workers.handlers.handler import Handler
from workers.ledger import SharedLimits, StepLedger
from workers.tools import Tools

INPUT_USD, OUTPUT_USD = 1.0, 10.0
"""Prices of a million tokens."""

HANDLERS = workers.steps.HANDLERS
"""Production's own."""


class Point(StrEnum):
    """Points at which a step can die, in the order in which it passes them."""

    RECORDED = "recorded, not sent"
    SENT = "sent, not answered"
    RECEIVED = "answered, not stored"
    STORED = "stored, not used"
    WORKED = "used, result not stored"


class Order:
    """One attempt of a step, and where it is to die: at the first due point that has not struck it before."""

    def __init__(self, line: str) -> None:
        said = json.loads(line)
        self.step, self.attempt, self.timeout = uuid.UUID(said["step"]), said["attempt"], said["timeout"]
        self._points = {Point(item) for item in said["points"]}
        self._struck = {(purpose, Point(point)) for purpose, point in said["struck"]}
        self.called = False

    def may_die(self) -> bool:
        """Return whether any point is due, in some call."""
        return bool(self._points)

    def due(self, purpose: str, point: Point) -> bool:
        """Return whether to die here."""
        return point in self._points and (purpose, point) not in self._struck

    def reach(self, purpose: str, point: Point) -> None:
        """Die here if it is due."""
        if self.due(purpose, point):
            say(died=[purpose, point])
            os.kill(os.getpid(), signal.SIGKILL)


def say(**words: Any) -> None:
    """One line, in one system call."""
    os.write(1, (json.dumps(words) + "\n").encode())


class DyingLedger(StepLedger):
    """Dies around its records."""

    order: Order

    def begin(self, call: Call) -> Answer | None:
        """See :meth:`agents.llm.ledger.Ledger.begin`."""
        known = super().begin(call)
        if known is None:
            self.order.called = True
            self.order.reach(call.purpose, Point.RECORDED)
            say(calls=call.purpose, pid=os.getpid(), kill=self.order.due(call.purpose, Point.SENT))
        return known

    def answered(self, call: Call, answer: Answer) -> None:
        """See :meth:`agents.llm.ledger.Ledger.answered`."""
        self.order.reach(call.purpose, Point.RECEIVED)
        super().answered(call, answer)
        self.order.reach(call.purpose, Point.STORED)


def do(order: Order, api_base: str) -> None:
    """Do the step, as far as it comes."""
    config = settings()
    database = Database(config.database_url.get_secret_value())
    models = RoleModels(default=(model(api_base, order.timeout),))
    pool = MemoryPool()

    def dying(handler: Handler[Any, Any]) -> Handler[Any, Any]:
        def work(*arguments: Any) -> Any:
            result = handler.work(*arguments)
            if order.called:
                order.reach("the result", Point.WORKED)
            return result

        return replace(handler, work=work)

    workers.steps.HANDLERS = {kind: dying(handler) for kind, handler in HANDLERS.items()}

    def agents(kind: AgentKind, claim: Any, cancelled: Any) -> Any:
        ledger = DyingLedger(database, claim, cancelled)
        ledger.order = order
        return (llm if kind is AgentKind.LLM else hybrid)(models, ledger, SharedLimits(database))

    tools = Tools(
        settings=config,
        database=database,
        agents=agents,
        judge=ScriptedJudge,
        pool=lambda: pool,  # type: ignore[arg-type,return-value]
    )
    workers.steps.run_step(order.step, order.attempt, "llm-1", tools, lambda: False)


def model(api_base: str, timeout: float = 300.0) -> Model:
    """The scripted model."""
    return Model(
        name="openai/scripted",
        api_base=api_base,
        input_usd_per_million=INPUT_USD,
        output_usd_per_million=OUTPUT_USD,
        max_output_tokens=2_000,
        timeout_seconds=timeout,
    )


def nap(seconds: float) -> None:
    """Short: that waits are right, the gateway's own tests show. But real: a call that is held off asks again."""
    time.sleep(min(seconds, 0.1))


def fork(work: Callable[[], None]) -> int:
    """Start a process that does this and ends; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child


def start_lasting(api_base: str) -> IO[str]:
    """Start the process of attempts that live; it takes their lines."""
    theirs, ours = os.pipe()

    def work() -> None:
        os.close(ours)
        with os.fdopen(theirs) as lines:
            for line in lines:
                status = 1
                try:
                    do(Order(line), api_base)
                    status = 0
                finally:
                    say(ended=status)

    fork(work)
    os.close(theirs)
    return os.fdopen(ours, "w")


def main(api_base: str) -> None:
    """Have each order done, until stdin ends."""
    Gateway.__init__.__kwdefaults__["sleep"] = nap
    agents.llm.gateway.FIRST_PAUSE_SECONDS = 0.01
    with suppress(TransportError):
        # Imports what the first call imports. Nobody is there: no connection is open when processes are forked.
        nobody = model("http://127.0.0.1:1/v1")
        complete(nobody, [{"role": "user", "content": "x"}], parameters(nobody, json_answer=True, seed=1))
    configure_mappers()
    catalogue()
    gc.collect()
    gc.freeze()  # or each process copies all that the collector looks at
    lasting = start_lasting(api_base)
    say(ready=True)
    for line in sys.stdin:
        order = Order(line)
        if not order.may_die():
            lasting.write(line)
            lasting.flush()
            continue
        _, status = os.waitpid(fork(partial(do, order, api_base)), 0)
        say(ended=os.waitstatus_to_exitcode(status))
    lasting.close()
    os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
