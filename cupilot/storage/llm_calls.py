"""Model calls on record: begun before they are made, answered before their answers are used, each in one transaction.

The job's row is locked for each, which serialises what its calls may still spend. A call whose worker died before the
answer was stored may have been paid all the same: it ends as ``lost``, and its worst cost stays reserved.
"""

from __future__ import annotations

import uuid

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.job import Budgets
from cupilot.model_call import Answer, BudgetScope, Call
from cupilot.storage.evolving import cut_short
from cupilot.storage.model_tables import LlmCall
from cupilot.storage.money import charge_call, check_budgets
from cupilot.storage.states import LlmCallState
from cupilot.storage.steps import Claim, lock_claimed
from cupilot.storage.tables import Job
from cupilot.storage.transitions import lock_generation, lock_job, record_event


def begin_call(session: Session, claim: Claim, call: Call) -> Answer | None:
    """Record that the claimed step makes this call now; the stored answer instead where it was answered before.

    Where the job allows it, that is also an answer to an equal call of another step or job of the team, which costs
    nothing. Raises :class:`cupilot.model_call.CostBudgetReached`, and :class:`cupilot.storage.transitions.Stale` where
    the claim is lost: a worker that came too late must not pay.
    """
    job, _ = lock_claimed(session, claim)
    known = _rows(session, claim, call)
    for row in known:
        if row.state is LlmCallState.ANSWERED and row.request_hash == call.request_hash():
            return Answer.model_validate(row.response)
        if row.state is LlmCallState.STARTED:
            # This step runs here, so whoever began that call is gone.
            _end(row, LlmCallState.LOST, "the worker was lost before the answer was stored")
    found = _answer_of_team(session, job, call) if Budgets.model_validate(job.budgets).reuse_answers else None
    if found is not None:
        session.add(_answered_before(_row(job, claim, call, len(known)), found))
        return found
    check_budgets(session, job, call)
    session.add(_row(job, claim, call, len(known)))
    return None


def answer_call(session: Session, claim: Claim, call: Call, answer: Answer) -> None:
    """Store the answer and charge its true cost, also for a worker that came too late: the money is spent."""
    job = lock_job(session, claim.job_id)
    row = _current(session, claim, call)
    row.state = LlmCallState.ANSWERED
    row.response = answer.model_dump(mode="json")
    row.prompt_tokens, row.completion_tokens = answer.prompt_tokens, answer.completion_tokens
    row.cost_usd = answer.cost_usd
    row.finished_at = func.now()
    charge_call(session, job, answer.cost_usd)


def fail_call(session: Session, claim: Claim, call: Call, reason: str, *, lost: bool) -> None:
    """No answer came. Nothing is charged; where it is not known whether the provider does, the worst stays reserved."""
    lock_job(session, claim.job_id)
    _end(_current(session, claim, call), LlmCallState.LOST if lost else LlmCallState.FAILED, reason)


def reject_answer(session: Session, claim: Claim, call: Call, complaint: str) -> None:
    """The answer could not be used: kept with what was wrong, and never given to another step."""
    _current(session, claim, call).complaint = complaint[:2_000]


def stop_spending(session: Session, claim: Claim, scope: BudgetScope) -> None:
    """A call did not fit its budget: the job makes no further ones, and ends once its open work is done."""
    job, _ = lock_claimed(session, claim)
    if job.spending_stopped is None:
        job.spending_stopped = scope.value
        if claim.generation_id is not None:
            cut_short(session, lock_generation(session, claim.generation_id))
        record_event(session, job.id, "budget.reached", step_id=claim.step_id, data={"budget": scope.value})


def _rows(session: Session, claim: Claim, call: Call) -> list[LlmCall]:
    query = select(LlmCall).where(LlmCall.step_id == claim.step_id, LlmCall.purpose == call.purpose)
    return list(session.scalars(query.order_by(LlmCall.sequence)))


def _current(session: Session, claim: Claim, call: Call) -> LlmCall:
    """The row of the latest try of this call: only this worker adds any while it holds the claim."""
    rows = [row for row in _rows(session, claim, call) if row.request_hash == call.request_hash()]
    return rows[-1]


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
        request=call.model_dump(mode="json"),
        request_hash=call.request_hash(),
        cost_usd=call.worst_cost_usd,
    )


def _answered_before(row: LlmCall, found: Answer) -> LlmCall:
    row.state = LlmCallState.ANSWERED
    row.cached = True
    row.cost_usd = 0.0
    row.response = found.model_dump(mode="json")
    row.prompt_tokens, row.completion_tokens = found.prompt_tokens, found.completion_tokens
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
    if stored is None:
        return None
    return Answer.model_validate(stored).model_copy(update={"cached": True, "cost_usd": 0.0, "seconds": 0.0})


def _end(row: LlmCall, state: LlmCallState, reason: str) -> None:
    row.state = state
    row.response = {"error": reason[:2_000]}
    if state is LlmCallState.FAILED:
        row.cost_usd = 0.0
    row.finished_at = func.now()
