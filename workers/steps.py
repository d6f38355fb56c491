"""Run one step: claim, load, work, store. Whatever happens, the step's row says so, and the message is acknowledged.

What a step does is its handler's business (:mod:`workers.handlers.registry`); what follows from it, the flow's
(:mod:`cupilot.jobs.flow`).
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy.orm import Session

from cupilot import tracing
from cupilot.domain.errors import Unavailable
from cupilot.domain.evaluation import FailureKind
from cupilot.domain.states import JobState, StepState
from cupilot.jobs.flow import fail_step
from cupilot.logs import log_context
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import Stale, move_step
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.jobs.jobs import anything_running
from cupilot.storage.models.calls import lose_open_calls
from cupilot.storage.queue.cluster import mark_unhealthy
from cupilot.storage.queue.steps import (
    LEFT_TO_OTHERS,
    Claim,
    claim_step,
    decline_step,
    lock_claimed,
    release_step,
    retry_step,
)
from workers.ahead import BuildAheadThread
from workers.devices import StepCancelled
from workers.exhaustion import lack_of
from workers.handlers.registry import HANDLERS
from workers.lease import Lease
from workers.stages import InfrastructureFailure, LacksMemory
from workers.tools import Tools

logger = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Delay before a step's second attempt; it doubles with each further one, up to a limit."""
STORE_RETRY_SECONDS = 1.0
"""Pause between attempts to store a result while the database is away."""


class Hold(Protocol):
    """Holder of a claimed step: a worker's :class:`workers.lease.Lease`, or a batch's."""

    def cancelled(self) -> bool:
        """Return whether to stop working."""

    @property
    def unwanted(self) -> bool:
        """True if nobody wants the result any more."""

    def concluded(self, session: Session, outcome: str) -> None:
        """Note what came of the step, in the transaction that stores it."""


def run_step(step_id: uuid.UUID, attempt: int, owner: str, tools: Tools, draining: Callable[[], bool]) -> None:
    """Claim and run the step at this attempt, for the worker ``owner``; return if another worker already has it."""
    if draining() or tools.retired.is_set():
        return_step(step_id, attempt, tools)
        return
    with tools.database.transaction() as session:
        duration = timedelta(seconds=tools.settings.lease_seconds)
        claim = claim_step(session, step_id, attempt, owner, duration)
    if claim is None:
        logger.info("step already claimed, ended or held back step=%s attempt=%d", step_id, attempt)
        return
    with (
        log_context(job=claim.job_id, step=claim.step_id, key=claim.key, attempt=claim.attempt),
        step_span(claim),
    ):
        started = time.monotonic()
        with Lease(tools.database, tools.settings, [claim], draining) as lease:
            outcome = run_claimed(claim, tools, lease.of(claim), draining)
        tracing.note(outcome=outcome)
        logger.info("%s %s in %.2fs", claim.kind.value, outcome, time.monotonic() - started)


def step_span(claim: Claim) -> AbstractContextManager[None]:
    """Return the span of a step's work, part of its job's trace."""
    return tracing.span(
        f"step {claim.kind.value}",
        parent=claim.trace,
        cause=claim.cause,
        job=str(claim.job_id),
        step=str(claim.step_id),
        key=claim.key,
        attempt=claim.attempt,
    )


def return_step(step_id: uuid.UUID, attempt: int, tools: Tools) -> None:
    """Return a message to the queue unclaimed, for other workers."""
    with tools.database.transaction() as session:
        decline_step(session, step_id, attempt, after=LEFT_TO_OTHERS)


def fail_attempt(
    session: Session,
    job: Job,
    step: Step,
    reason: str,
    message: str,
    *,
    event: str = "step.retried",
    busy_seconds: float | None = None,
) -> str:
    """Charge a failed attempt of a running step: queue it again, or fail it after the last one.

    A problem that is too large to be judged has one more attempt: another device may have more room, or this one have
    it later. Job and step are locked; ``busy_seconds`` is as in :func:`cupilot.storage.db.transitions.move_step`.
    Returns ``retried`` or ``failed``.
    """
    error = {"reason": reason, "message": message[:2_000]}
    lose_open_calls(session, job, [step.id])
    too_large = reason == FailureKind.OUT_OF_MEMORY and (step.error or {}).get("reason") == reason
    if step.attempt < step.max_attempts and not too_large:
        after = timedelta(seconds=RETRY_SECONDS * 2 ** (step.attempt - 1))
        retry_step(session, step, error, after=after, event=event, busy_seconds=busy_seconds)
        return "retried"
    move_step(
        session,
        step,
        StepState.FAILED,
        attempt=step.attempt,
        busy_seconds=busy_seconds,
        values={"error": error},
        data=error,
    )
    fail_step(session, job, step, reason, message)
    return "failed"


@dataclass(frozen=True)
class Finish:
    """Record to write of a step whose work is done."""

    claim: Claim
    result: Any

    def __call__(self, session: Session) -> str:
        """Store the result and what follows from it."""
        return finish_step(session, self.claim, self.result)


Write = Callable[[Session], str]
"""Writes what came of a step, in one transaction; returns it in one word. May raise :class:`Stale`."""


def run_claimed(claim: Claim, tools: Tools, lease: Hold, draining: Callable[[], bool]) -> str:
    """Load, work and store a claimed step; return what came of it, in one word."""
    return store(tools, claim, lease, work_claimed(claim, tools, lease, draining))


def work_claimed(claim: Claim, tools: Tools, lease: Hold, draining: Callable[[], bool]) -> Write:
    """Load and work; return what is to be written, a :class:`Finish` where the work succeeded."""
    handler = HANDLERS[claim.kind]
    try:
        with tools.database.transaction() as session:
            loaded = handler.load(session, claim)
        with _building_ahead(claim, tools, draining):
            return Finish(claim, handler.work(loaded, tools, lease.cancelled))
    except StepCancelled:
        return lambda session: release(session, claim, lease)
    except Stale as error:
        stale = error
        return lambda _: _raise(stale)
    except Exception as error:
        reason, message = _blame(claim, tools, error)
    return lambda session: _fail(session, claim, reason, message)


def _blame(claim: Claim, tools: Tools, error: Exception) -> tuple[str, str]:
    """Return a failed attempt's reason and message; take this worker out of service where it could serve no other."""
    if (lack := lack_of(error)) is not None:
        _retire(tools, claim.owner, lack)
        return "infrastructure", f"worker {claim.owner} {lack}; it restarts, and the step is tried again"
    if claim.kind.on_device and (fault := tools.device_fault()) is not None:
        _retire(tools, claim.owner, fault)
    if isinstance(error, LacksMemory):
        return FailureKind.OUT_OF_MEMORY.value, f"on {claim.owner}: {error}"
    if isinstance(error, InfrastructureFailure | Unavailable):
        return "infrastructure", f"on {claim.owner}: {error}"
    logger.exception("step failed step=%s attempt=%d", claim.step_id, claim.attempt, exc_info=error)
    # Not the error's own text, which may hold SQL or paths: users see this.
    return "internal_error", f"{type(error).__name__} in a worker; its log says more at {claim.step_id}"


def _raise(error: Stale) -> str:
    raise error


def _building_ahead(claim: Claim, tools: Tools, draining: Callable[[], bool]) -> AbstractContextManager[object]:
    return BuildAheadThread(tools, tools.judge(), claim, draining) if claim.kind.on_device else nullcontext()


def _retire(tools: Tools, worker: str, fault: str) -> None:
    """Mark a worker that cannot serve as unhealthy: its slots count no more, and it ends itself."""
    logger.critical("worker out of service: %s", fault)
    tools.retired.set()
    with suppress(Unavailable), tools.database.transaction() as session:
        mark_unhealthy(session, worker, fault)


def finish_step(session: Session, claim: Claim, result: Any) -> str:
    """Store the result of a claimed step, and what follows from it; raises :class:`Stale` where the claim is lost."""
    job, step = lock_claimed(session, claim)
    if job.cancel_requested_at is not None:
        return cancel_running(session, job, step, claim.busy_seconds)
    move_step(session, step, StepState.SUCCEEDED, attempt=claim.attempt, busy_seconds=claim.busy_seconds)
    HANDLERS[claim.kind].store(session, job, step, result)
    return "succeeded"


def store(tools: Tools, claim: Claim, lease: Hold, write: Write) -> str:
    """Write in one transaction; retry while the database is away and the claim may still be valid.

    A result that cannot be written for another reason is a failed attempt.
    """
    try:
        return _written(tools, lease, write)
    except Exception as error:
        reason, message = _blame(claim, tools, error)
    return _written(tools, lease, lambda session: _fail(session, claim, reason, message))


def _written(tools: Tools, lease: Hold, write: Write) -> str:
    while True:
        try:
            with tools.database.transaction() as session:
                outcome = write(session)
                lease.concluded(session, outcome)
                return outcome
        except Stale:
            return "stale"
        except Unavailable:
            if lease.unwanted:
                return "lost"
            time.sleep(STORE_RETRY_SECONDS)


def release(session: Session, claim: Claim, lease: Hold) -> str:
    """Release a claimed step that this process does not finish, or cancel it where its job is being cancelled."""
    job, step = lock_claimed(session, claim)
    if job.cancel_requested_at is not None:
        return cancel_running(session, job, step, claim.busy_seconds)
    if lease.unwanted:
        return "lost"
    release_step(session, claim)
    return "released"


def _fail(session: Session, claim: Claim, reason: str, message: str) -> str:
    job, step = lock_claimed(session, claim)
    if job.cancel_requested_at is not None:
        return cancel_running(session, job, step, claim.busy_seconds)
    return fail_attempt(session, job, step, reason, message, busy_seconds=claim.busy_seconds)


def cancel_running(session: Session, job: Job, step: Step, busy_seconds: float) -> str:
    """Cancel the step at the user's request; the job's last running step ends the job."""
    move_step(session, step, StepState.CANCELLED, attempt=step.attempt, busy_seconds=busy_seconds)
    if not anything_running(session, job):
        end_job(session, job, JobState.CANCELLED, reason="cancel_requested")
    return "cancelled"
