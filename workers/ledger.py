"""The ledger of one claimed step's model calls, in Postgres. Each method is one short transaction."""

from __future__ import annotations

from cupilot.model_call import Answer, Call
from cupilot.storage.database import Database
from cupilot.storage.llm_calls import answer_call, begin_call, fail_call
from cupilot.storage.steps import Claim


class StepLedger:
    """See :class:`agents.llm.ledger.Ledger`."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database = database
        self._claim = claim

    def begin(self, call: Call) -> Answer | None:
        """Record the call, unless its answer is known."""
        with self._database.transaction() as session:
            return begin_call(session, self._claim, call)

    def answered(self, call: Call, answer: Answer) -> None:
        """Store the answer and charge it."""
        with self._database.transaction() as session:
            answer_call(session, self._claim, call, answer)

    def failed(self, call: Call, reason: str) -> None:
        """Record that no answer came."""
        with self._database.transaction() as session:
            fail_call(session, self._claim, call, reason)
