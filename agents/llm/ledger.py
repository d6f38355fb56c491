"""Interfaces of what the gateway records and shares: the ledger of calls, and the rate limits of models.

Calls are recorded before they are made and stored before their answers are used. Only the contracts are here, and
implementations for one process; the workers keep theirs in Postgres.
"""

from __future__ import annotations

import time
from typing import Protocol

from cupilot.domain.model_call import Answer, Call, CostBudgetReached


class Ledger(Protocol):
    """The record of calls. One ledger serves one step; every method is durable when it returns."""

    def begin(self, call: Call) -> Answer | None:
        """Record that the call is made now; the stored answer instead where this very call was answered before.

        Raises :class:`cupilot.domain.model_call.CostBudgetReached` before anything is paid.
        """
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """Store the answer and charge its cost."""
        ...

    def failed(self, call: Call, reason: str, *, lost: bool) -> None:
        """Record that no answer came; ``lost`` where it may have been charged all the same."""
        ...

    def rejected(self, call: Call, complaint: str) -> None:
        """Record that the answer could not be used, and why."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait before the next call, as long as anybody still wants the step."""
        ...


class Limits(Protocol):
    """Rate limits that all workers share; ``model`` names model and endpoint."""

    def take(
        self, model: str, *, requests_per_minute: float | None, tokens_per_minute: float | None, tokens: int
    ) -> float:
        """Take a request of ``tokens``: 0.0, or the seconds to wait before asking again."""
        ...

    def settle(self, model: str, *, taken: int, used: int) -> None:
        """Correct the tokens that were taken by an estimate."""
        ...

    def back_off(self, model: str, seconds: float) -> None:
        """Keep every caller waiting for the time that the provider asks for."""
        ...


class NoLimits:
    """Limits of a single process, which shares them with nobody."""

    def take(
        self,
        model: str,  # noqa: ARG002
        *,
        requests_per_minute: float | None,  # noqa: ARG002
        tokens_per_minute: float | None,  # noqa: ARG002
        tokens: int,  # noqa: ARG002
    ) -> float:
        """See :meth:`Limits.take`."""
        return 0.0

    def settle(self, model: str, *, taken: int, used: int) -> None:
        """See :meth:`Limits.settle`."""

    def back_off(self, model: str, seconds: float) -> None:
        """See :meth:`Limits.back_off`."""


class MemoryLedger:
    """A ledger for one process: enforces a budget and answers repeated calls from memory."""

    def __init__(self, budget_usd: float = float("inf")) -> None:
        self.budget_usd = budget_usd
        self.spent_usd = 0.0
        """Charged, and the worst case of what was lost."""
        self.calls: list[tuple[Call, Answer | str]] = []
        self.complaints: list[str] = []
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

    def failed(self, call: Call, reason: str, *, lost: bool) -> None:
        """See :meth:`Ledger.failed`."""
        self.spent_usd += call.worst_cost_usd if lost else 0.0
        self.calls.append((call, reason))

    def rejected(self, call: Call, complaint: str) -> None:  # noqa: ARG002
        """See :meth:`Ledger.rejected`."""
        self.complaints.append(complaint)

    def pause(self, seconds: float) -> None:
        """See :meth:`Ledger.pause`."""
        time.sleep(seconds)
