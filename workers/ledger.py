"""The ledger of one claimed step's model calls, and the rate limits that all workers share, both in Postgres.

Each method is one short transaction. Storing a paid answer is retried while the database is away, rather than the
answer dropped and paid a second time.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from cupilot.domain.errors import Unavailable
from cupilot.domain.model_call import Answer, BudgetScope, Call, CostBudgetReached
from cupilot.storage.db.engine import Database
from cupilot.storage.models import rates as llm_rates
from cupilot.storage.models.calls import (
    CancelRequested,
    answer_call,
    begin_call,
    fail_call,
    reject_answer,
    stop_spending,
)
from cupilot.storage.queue.steps import Claim, still_wanted
from workers.devices import StepCancelled

logger = logging.getLogger(__name__)

STORE_SECONDS = 600.0
"""Time for which storing a paid answer is retried while the database is away."""
STORE_RETRY_SECONDS = 1.0
LOOK_SECONDS = 2.0
"""Interval, while a call waits, between looks whether its step is still wanted."""


class StepLedger:
    """See :class:`agents.llm.ledger.Ledger`."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        cancelled: Callable[[], bool],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``cancelled`` returns whether the step is to be left, also because the worker ends."""
        self._database = database
        self._claim = claim
        self._cancelled = cancelled
        self._sleep = sleep
        self._records: dict[str, uuid.UUID] = {}
        """Id of the record of each purpose's latest call. By id, so that a worker whose step was claimed by another one
        meanwhile never writes into the other's record."""

    def begin(self, call: Call) -> Answer | None:
        """Record the call; return its answer instead where it is known.

        Raises :class:`workers.devices.StepCancelled` where the job is being cancelled, or the step is to be left: the
        answers that it has are stored, and its next attempt goes on with them.
        """
        self._go_on()
        try:
            with self._database.transaction() as session:
                begun = begin_call(session, self._claim, call)
        except CancelRequested as error:
            raise StepCancelled(str(error)) from error
        except CostBudgetReached as error:
            if error.scope is not BudgetScope.CALL:
                with self._database.transaction() as session:
                    stop_spending(session, self._claim, error.scope)
            raise
        self._records[call.purpose] = begun.id
        return begun.answer

    def answered(self, call: Call, answer: Answer) -> None:
        """Store the answer and charge it."""
        deadline = time.monotonic() + STORE_SECONDS
        while True:
            try:
                with self._database.transaction() as session:
                    answer_call(session, self._records[call.purpose], answer)
            except Unavailable:
                if time.monotonic() >= deadline:
                    raise
                logger.warning("paid answer not stored, database unavailable step=%s", self._claim.step_id)
                self._sleep(STORE_RETRY_SECONDS)
            else:
                return

    def failed(self, call: Call, reason: str, *, lost: bool) -> None:
        """Record that no answer came."""
        with self._database.transaction() as session:
            fail_call(session, self._records[call.purpose], reason, lost=lost)

    def rejected(self, call: Call, complaint: str) -> None:
        """Record what was wrong with the answer."""
        with self._database.transaction() as session:
            reject_answer(session, self._records[call.purpose], complaint)

    def pause(self, seconds: float) -> None:
        """Wait; raise :class:`workers.devices.StepCancelled` where the claim is lost or the step is to be left."""
        while seconds > 0:
            self._go_on()
            slept = min(seconds, LOOK_SECONDS)
            self._sleep(slept)
            seconds -= slept
            with suppress(Unavailable), self._database.transaction() as session:
                if not still_wanted(session, self._claim):
                    raise StepCancelled("nobody waits for this step's model call any more")

    def _go_on(self) -> None:
        if self._cancelled():
            raise StepCancelled("the step is cancelled, or its worker ends")


class SharedLimits:
    """See :class:`agents.llm.ledger.Limits`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(
        self, model: str, *, requests_per_minute: float | None, tokens_per_minute: float | None, tokens: int
    ) -> float:
        """Take a request from the model's buckets; return the seconds to wait, 0 where it was taken."""
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

    def back_off(self, model: str, seconds: float) -> None:
        """Make all workers wait before they call the model."""
        with self._database.transaction() as session:
            llm_rates.back_off(session, model, seconds)
