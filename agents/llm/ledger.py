"""The ledger of model calls: recorded before they are made, stored before their answers are used.

Only the contract and an in-memory ledger for one process; the workers keep theirs in Postgres.
"""

from __future__ import annotations

from typing import Protocol

from cupilot.model_call import Answer, Call, CostBudgetReached


class Ledger(Protocol):
    """Where calls are recorded. One ledger serves one step; every method is durable when it returns."""

    def begin(self, call: Call) -> Answer | None:
        """Record that the call is made now; the stored answer instead where this very call was answered before.

        Raises :class:`cupilot.model_call.CostBudgetReached` before anything is paid.
        """
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """Store the answer and charge its cost."""
        ...

    def failed(self, call: Call, reason: str) -> None:
        """Record that no answer came; nothing is charged."""
        ...


class MemoryLedger:
    """A ledger for one process: enforces a budget and answers repeated calls from memory."""

    def __init__(self, budget_usd: float = float("inf")) -> None:
        self.budget_usd = budget_usd
        self.spent_usd = 0.0
        self.calls: list[tuple[Call, Answer | str]] = []
        self._answers: dict[str, Answer] = {}

    def begin(self, call: Call) -> Answer | None:
        """See :meth:`Ledger.begin`."""
        known = self._answers.get(call.request_hash())
        if known is None and self.spent_usd + call.worst_cost_usd > self.budget_usd:
            raise CostBudgetReached(call.worst_cost_usd, self.budget_usd - self.spent_usd)
        return known

    def answered(self, call: Call, answer: Answer) -> None:
        """See :meth:`Ledger.answered`."""
        self.spent_usd += answer.cost_usd
        self._answers[call.request_hash()] = answer
        self.calls.append((call, answer))

    def failed(self, call: Call, reason: str) -> None:
        """See :meth:`Ledger.failed`."""
        self.calls.append((call, reason))
