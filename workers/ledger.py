"""The ledger of one claimed step's model calls, and the rate limits that all workers share, both in Postgres.

Each method is one short transaction.
"""

from __future__ import annotations

from cupilot.model_call import Answer, BudgetScope, Call, CostBudgetReached
from cupilot.storage import llm_rates
from cupilot.storage.database import Database
from cupilot.storage.llm_calls import answer_call, begin_call, fail_call, reject_answer, stop_spending
from cupilot.storage.steps import Claim


class StepLedger:
    """See :class:`agents.llm.ledger.Ledger`."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database = database
        self._claim = claim

    def begin(self, call: Call) -> Answer | None:
        """Record the call, unless its answer is known."""
        try:
            with self._database.transaction() as session:
                return begin_call(session, self._claim, call)
        except CostBudgetReached as error:
            if error.scope is not BudgetScope.CALL:
                with self._database.transaction() as session:
                    stop_spending(session, self._claim, error.scope)
            raise

    def answered(self, call: Call, answer: Answer) -> None:
        """Store the answer and charge it."""
        with self._database.transaction() as session:
            answer_call(session, self._claim, call, answer)

    def failed(self, call: Call, reason: str, *, lost: bool) -> None:
        """Record that no answer came."""
        with self._database.transaction() as session:
            fail_call(session, self._claim, call, reason, lost=lost)

    def rejected(self, call: Call, complaint: str) -> None:
        """Record what was wrong with the answer."""
        with self._database.transaction() as session:
            reject_answer(session, self._claim, call, complaint)


class SharedLimits:
    """See :class:`agents.llm.ledger.Limits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(
        self, model: str, *, requests_per_minute: float | None, tokens_per_minute: float | None, tokens: int
    ) -> float:
        """Take a request from the model's buckets, or say how long to wait."""
        with self._database.transaction() as session:
            return llm_rates.take(
                session,
                model,
                requests_per_minute=requests_per_minute,
                tokens_per_minute=tokens_per_minute,
                tokens=tokens,
            )

    def settle(self, model: str, *, taken: int, used: int) -> None:
        """Correct the estimate to what was used."""
        with self._database.transaction() as session:
            llm_rates.settle(session, model, taken=taken, used=used)

    def hold_off(self, model: str, seconds: float) -> None:
        """Let all workers wait."""
        with self._database.transaction() as session:
            llm_rates.hold_off(session, model, seconds)
