"""One step of an agent worker that is killed: ``python -m tests.service.dying_step STEP ATTEMPT API_BASE``.

It dies by SIGKILL as soon as a model's first answer is stored, before anything is made of it.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid

from agents.llm.models import Model, RoleModels
from agents.llm.players import llm
from cupilot.model_call import Answer, Call
from cupilot.settings import settings
from cupilot.storage.database import Database
from tests.service.doubles import MemoryPool, ScriptedJudge
from workers.ledger import StepLedger
from workers.steps import do_step
from workers.tools import Tools


class DyingLedger(StepLedger):
    """Stores an answer and takes the process with it."""

    def answered(self, call: Call, answer: Answer) -> None:
        """See :meth:`agents.llm.ledger.Ledger.answered`."""
        super().answered(call, answer)
        os.kill(os.getpid(), signal.SIGKILL)


def main(step: str, attempt: str, api_base: str) -> None:
    """Do the step, as far as it comes."""
    config = settings()
    database = Database(config.database_url.get_secret_value())
    model = Model(
        name="openai/scripted",
        api_base=api_base,
        input_usd_per_million=1.0,
        output_usd_per_million=10.0,
        max_output_tokens=1_000,
    )
    pool = MemoryPool()
    tools = Tools(
        settings=config,
        database=database,
        agents=lambda _, claim: llm(RoleModels(default=(model,)), DyingLedger(database, claim)),
        judge=ScriptedJudge,
        pool=lambda: pool,  # type: ignore[arg-type,return-value]
    )
    do_step(uuid.UUID(step), int(attempt), "agent-1", tools, lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:4])
