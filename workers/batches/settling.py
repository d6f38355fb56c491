"""Settle results that came for a batch, each as the worker would that did the step itself; and release what is left.

One transaction a step, by the same guards: the step must still be running at the attempt that was exported.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.orm import Session

from cupilot import tracing
from cupilot.domain.batches.manifest import Question
from cupilot.domain.batches.results import BatchRecord
from cupilot.domain.errors import CupilotError
from cupilot.domain.states import BatchOutcome, BatchState, StepState
from cupilot.logs import log_context
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.batches import Batch, BatchStep
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_generation, lock_job
from cupilot.storage.queue.batches import (
    conclude,
    end_batch,
    is_resolved,
    lock_batch,
    lock_steps,
    lost,
    named_objects,
    next_received,
    owner_of,
    unresolved,
)
from cupilot.storage.queue.steps import Claim, return_from_batch
from workers.batches.judges import AnsweringJudge, batch_tools
from workers.steps import run_claimed

logger = logging.getLogger(__name__)

_OUTCOMES: Mapping[str, BatchOutcome] = {
    "succeeded": BatchOutcome.SETTLED,
    "retried": BatchOutcome.RETRIED,
    "failed": BatchOutcome.FAILED,
    "cancelled": BatchOutcome.CANCELLED,
    "stale": BatchOutcome.STALE,
}
_LATE = "the step is no longer the batch's: its lease had ended, or its job had"
_DETAILS: Mapping[BatchOutcome, str] = {
    BatchOutcome.RETRIED: "the attempt failed; the step waits for another one",
    BatchOutcome.FAILED: "the attempt failed, and it was the step's last one",
    BatchOutcome.CANCELLED: "its job was cancelled",
    BatchOutcome.STALE: _LATE,
}


@dataclass(frozen=True)
class BatchHold:
    """See :class:`workers.steps.Hold`: the work is done already, and its row says what came of it."""

    batch_id: uuid.UUID
    step_id: uuid.UUID
    unwanted: bool = True
    """A result that cannot be stored now is not waited for: it stays where it is, for the next look."""

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def concluded(self, session: Session, outcome: str) -> None:
        """Write what came of the step into the batch."""
        known = _OUTCOMES[outcome]
        conclude(session, self.batch_id, self.step_id, known, detail=_DETAILS.get(known))


def settle_results(settings: Settings, database: Database, deadline: float) -> None:
    """Settle results that wait for it, until ``deadline`` by :func:`time.monotonic`."""
    while time.monotonic() < deadline:
        with database.transaction() as session:
            waiting = next_received(session)
            job = session.get(Job, waiting[1].entry.job) if waiting else None
            step = session.get(Step, waiting[1].step_id) if waiting else None
        if waiting is None or job is None or step is None:
            return
        batch, row = waiting
        try:
            _settle(settings, database, row, _claim_of(row, job, step))
        except CupilotError:
            raise
        except Exception:  # one result that cannot be settled must not hold up the others
            logger.exception("result not settled step=%s batch=%s", step.id, batch.id)
            with database.transaction() as session:
                _drop(session, row, "the result could not be settled")


def _claim_of(row: BatchStep, job: Job, step: Step) -> Claim:
    """Return the claim that the batch had made, as old as the time for which the step had its device."""
    return Claim(
        step_id=step.id,
        job_id=job.id,
        candidate_id=step.candidate_id,
        generation_id=step.generation_id,
        kind=step.kind,
        key=step.key,
        owner=owner_of(row.batch_id),
        attempt=row.entry.attempt,
        payload=step.payload,
        trace=job.traceparent,
        cause=step.traceparent,
        since=time.monotonic() - (row.seconds or 0.0),
    )


def _settle(settings: Settings, database: Database, row: BatchStep, claim: Claim) -> None:
    record = BatchRecord.model_validate_json(row.record or "")

    def named(question: Question) -> Mapping[str, str]:
        with database.transaction() as session:
            return named_objects(session, row.batch_id, question.objects())

    tools = batch_tools(settings, database, AnsweringJudge(row.entry.question, record, named))
    hold = BatchHold(row.batch_id, row.step_id)
    about = {"job": claim.job_id, "step": claim.step_id, "key": claim.key, "attempt": claim.attempt}
    with log_context(**about), tracing.span(f"settle {claim.kind.value}", parent=claim.trace, batch=str(row.batch_id)):
        outcome = run_claimed(claim, tools, hold, lambda: False)
        tracing.note(outcome=outcome)
        if outcome == "stale":
            with database.transaction() as session:
                _drop(session, row, _LATE)
        logger.info("%s %s from batch %s", claim.kind.value, outcome, row.batch_id)


def _drop(session: Session, row: BatchStep, detail: str) -> None:
    """Drop a result, and queue its step again where the batch still holds it."""
    job, step = _lock(session, row)
    if _holds(row, step) and job.cancel_requested_at is None:
        return_from_batch(session, step, "result_dropped")
        detail = "the result cannot be used; the step waits for a worker again"
    conclude(session, row.batch_id, row.step_id, BatchOutcome.STALE, detail=detail)


def release_unresolved(database: Database, batch: Batch, limit: int) -> None:
    """Queue up to ``limit`` steps again that a batch holds which was cancelled, or whose lease has ended."""
    with database.transaction() as session:
        rows = unresolved(session, batch, limit)
    reason = "lease_ended" if batch.state is BatchState.EXPIRED else "batch_cancelled"
    for row in rows:
        with database.transaction() as session:
            _release(session, batch, row, reason)


def close_lost(database: Database, batch: Batch) -> None:
    """Give steps an outcome that the batch does not hold any more, and for which no result came."""
    with database.transaction() as session:
        for step in lost(session, batch):
            conclude(session, batch.id, step, BatchOutcome.CANCELLED, detail="its job has ended")


def end_if_resolved(database: Database, batch: Batch) -> None:
    """End a batch of which every step has an outcome."""
    with database.transaction() as session:
        row = lock_batch(session, batch.id)
        if row.state is not BatchState.EXPORTING and is_resolved(session, row):
            end_batch(session, row, BatchState.FINISHED if row.state is BatchState.OPEN else row.state)
            logger.info("batch %s batch=%s", row.state.value, row.id)


def _release(session: Session, batch: Batch, row: BatchStep, reason: str) -> None:
    job, step = _lock(session, row)
    if lock_steps(session, batch, [row.step_id])[row.step_id].outcome is not None:
        return  # its result came meanwhile
    if _holds(row, step) and job.cancel_requested_at is None:
        return_from_batch(session, step, reason)
    conclude(session, batch.id, row.step_id, BatchOutcome.RELEASED, detail=reason.replace("_", " "))


def _lock(session: Session, row: BatchStep) -> tuple[Job, Step]:
    """Return the job and the step, both locked, and the step's generation."""
    job = lock_job(session, row.entry.job)
    step = session.get_one(Step, row.step_id)
    if step.generation_id is not None:
        lock_generation(session, step.generation_id)
    return job, session.get_one(Step, row.step_id, with_for_update={"key_share": True}, populate_existing=True)


def _holds(row: BatchStep, step: Step) -> bool:
    """Return whether the batch still holds a locked step, as it was exported."""
    return step.state is StepState.RUNNING and step.batch_id == row.batch_id and step.attempt == row.entry.attempt
