"""Record model calls: before they are made, and their answers before these are used, each in one transaction.

The job's row is locked for each, which serialises what its calls may still spend. A call whose worker died before the
answer was stored may have been paid all the same: it ends as ``lost``, and its worst cost stays reserved. Should that
worker live after all and bring the answer later, the call is answered and charged what it cost.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from cupilot.domain.model_call import Answer, BudgetScope, Call, NoAnswer
from cupilot.domain.states import LlmCallState
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.transitions import lock_generation, lock_job, record_event
from cupilot.storage.jobs.evolving import cut_short
from cupilot.storage.models.money import check_budgets, warn_of_budgets
from cupilot.storage.queue.steps import Claim, lock_claimed


class CancelRequested(Exception):
    """The job is being cancelled: no further call of it is paid."""


@dataclass(frozen=True)
class RecordedCall:
    """Recorded call."""

    id: uuid.UUID
    answer: Answer | None
    """Stored answer; None if the call is to be made now."""


def begin_call(session: Session, claim: Claim, call: Call) -> RecordedCall:
    """Record that the claimed step makes this call now, or find the stored answer where it was answered before.

    A step's earlier attempt asked for the same purpose, if perhaps in other words (what the job has tried meanwhile is
    part of some prompts): its answer is paid for, so it stands. Where the job allows it, so does the answer to an equal
    call of another step or job of the team, which costs nothing. Raises
    :class:`cupilot.domain.model_call.CostBudgetReached`, :class:`CancelRequested`, and
    :class:`cupilot.storage.db.transitions.Stale` where the claim is lost: a worker that came too late must not pay.
    """
    job, _ = lock_claimed(session, claim)
    if job.cancel_requested_at is not None:
        raise CancelRequested(f"job {job.id} is being cancelled")
    # This step runs here, so whoever began a call of it before is gone.
    lose_open_calls(session, job, [claim.step_id])
    rows = _rows(session, claim, call)
    for row in rows:
        if isinstance(row.response, Answer):
            return RecordedCall(row.id, row.response)
    answered = _answer_of_team(session, job, call) if job.budgets.reuse_answers else None
    row = _row(job, claim, call, len(rows))
    if answered is not None:
        session.add(_answered_before(row, answered))
        return RecordedCall(row.id, answered)
    check_budgets(session, job, call)
    session.add(row)
    return RecordedCall(row.id, None)


def answer_call(session: Session, call_id: uuid.UUID, answer: Answer) -> None:
    """Store the answer and charge its true cost, also for a worker that came too late: the money is spent.

    May be repeated: a worker whose connection broke during the commit cannot know whether it was done.
    """
    row = session.get_one(LlmCall, call_id)
    job = lock_job(session, row.job_id)
    session.refresh(row)
    if row.state is LlmCallState.ANSWERED:
        return
    lost_usd = row.cost_usd if row.state is LlmCallState.LOST else 0.0
    row.state = LlmCallState.ANSWERED
    row.response = answer
    row.prompt_tokens, row.completion_tokens = answer.prompt_tokens, answer.completion_tokens
    row.cost_usd = answer.cost_usd
    row.finished_at = func.now()
    job.cost_usd += answer.cost_usd
    warn_of_budgets(session, job, answer.cost_usd - lost_usd)


def fail_call(session: Session, call_id: uuid.UUID, reason: str, *, lost: bool) -> None:
    """End a call without an answer, uncharged; its worst cost stays reserved where the provider may charge for it."""
    row = session.get_one(LlmCall, call_id)
    job = lock_job(session, row.job_id)
    session.refresh(row)
    added_usd = row.cost_usd if lost and row.state is LlmCallState.STARTED else 0.0
    row.state = LlmCallState.LOST if lost else LlmCallState.FAILED
    row.response = NoAnswer(error=reason[:2_000])
    row.cost_usd = row.cost_usd if lost else 0.0
    row.finished_at = func.now()
    warn_of_budgets(session, job, added_usd)


def lose_open_calls(session: Session, job: Job, steps: Sequence[uuid.UUID]) -> None:
    """Mark open calls of lost workers as lost: their cost is unknown, so their worst cost stays reserved.

    The steps' job is locked.
    """
    lost_usd = session.scalars(
        update(LlmCall)
        .where(LlmCall.step_id.in_(steps), LlmCall.state == LlmCallState.STARTED)
        .values(
            state=LlmCallState.LOST,
            response=NoAnswer(error="the worker was lost before the answer was stored; it may have been paid"),
            finished_at=func.now(),
        )
        .returning(LlmCall.cost_usd)
    ).all()
    warn_of_budgets(session, job, sum(lost_usd))


def reject_answer(session: Session, call_id: uuid.UUID, complaint: str) -> None:
    """Reject an answer that could not be used: keep it with its error, and reuse it for no other step."""
    session.get_one(LlmCall, call_id).complaint = complaint[:2_000]


def stop_spending(session: Session, claim: Claim, scope: BudgetScope) -> None:
    """Stop the job's model calls after one that did not fit its budget; it ends once its open work is done."""
    job, _ = lock_claimed(session, claim)
    if job.spending_stopped is None:
        job.spending_stopped = scope.value
        if claim.generation_id is not None:
            cut_short(session, lock_generation(session, claim.generation_id))
        record_event(session, job.id, "budget.reached", step_id=claim.step_id, data={"budget": scope.value})


def _rows(session: Session, claim: Claim, call: Call) -> list[LlmCall]:
    query = select(LlmCall).where(LlmCall.step_id == claim.step_id, LlmCall.purpose == call.purpose)
    return list(session.scalars(query.order_by(LlmCall.sequence)))


def _row(job: Job, claim: Claim, call: Call, sequence: int) -> LlmCall:
    return LlmCall(
        id=uuid.uuid4(),
        team_id=job.team_id,
        job_id=claim.job_id,
        step_id=claim.step_id,
        role=call.role,
        purpose=call.purpose,
        sequence=sequence,
        model=call.model,
        request=call,
        request_hash=call.request_hash(),
        cost_usd=call.worst_cost_usd,
    )


def _answered_before(row: LlmCall, answer: Answer) -> LlmCall:
    row.state = LlmCallState.ANSWERED
    row.cached = True
    row.cost_usd = 0.0
    row.response = answer
    row.prompt_tokens, row.completion_tokens = answer.prompt_tokens, answer.completion_tokens
    row.finished_at = func.now()
    return row


def _answer_of_team(session: Session, job: Job, call: Call) -> Answer | None:
    query = (
        select(LlmCall.response)
        .where(LlmCall.team_id == job.team_id, LlmCall.request_hash == call.request_hash())
        .where(LlmCall.state == LlmCallState.ANSWERED, LlmCall.complaint.is_(None))
        .order_by(LlmCall.created_at)
        .limit(1)
    )
    stored = session.scalars(query).one_or_none()
    if not isinstance(stored, Answer):
        return None
    return stored.model_copy(update={"cached": True, "cost_usd": 0.0, "seconds": 0.0})
