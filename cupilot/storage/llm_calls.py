"""Model calls on record: begun before they are made, answered before their answers are used, each in one transaction.

The job's row is locked for each, which serialises what its calls may still spend. A call whose worker died before the
answer was stored may have been paid all the same: it stays ``started`` and its worst cost stays reserved.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.job import Budgets
from cupilot.model_call import Answer, Call, CostBudgetReached
from cupilot.storage.states import LlmCallState
from cupilot.storage.steps import Claim, lock_claimed
from cupilot.storage.tables import Job, LlmCall


def begin_call(session: Session, claim: Claim, call: Call) -> Answer | None:
    """Record that the claimed step makes this call now; the stored answer instead where it was answered before.

    Raises :class:`CostBudgetReached`, and :class:`cupilot.storage.transitions.Stale` where the claim is lost: a worker
    that came too late must not pay.
    """
    job, _ = lock_claimed(session, claim)
    known = _rows(session, claim, call)
    for row in known:
        if row.state is LlmCallState.ANSWERED and row.request["hash"] == call.request_hash():
            return Answer.model_validate(row.response)
    left = Budgets.model_validate(job.budgets).cost_usd - job.cost_usd - _reserved(session, job)
    if call.worst_cost_usd > left:
        raise CostBudgetReached(call.worst_cost_usd, left)
    request = {**call.model_dump(mode="json"), "hash": call.request_hash()}
    session.add(
        LlmCall(
            job_id=claim.job_id,
            step_id=claim.step_id,
            purpose=call.purpose,
            sequence=len(known),
            model=call.model,
            request=request,
            cost_usd=call.worst_cost_usd,
        )
    )
    return None


def answer_call(session: Session, claim: Claim, call: Call, answer: Answer) -> None:
    """Store the answer and charge its true cost, also for a worker that came too late: the money is spent."""
    job = session.get_one(Job, claim.job_id, with_for_update={"key_share": True}, populate_existing=True)
    row = _rows(session, claim, call)[-1]
    row.state = LlmCallState.ANSWERED
    row.response = answer.model_dump(mode="json")
    row.prompt_tokens, row.completion_tokens = answer.prompt_tokens, answer.completion_tokens
    row.cost_usd = answer.cost_usd
    row.finished_at = func.now()
    job.cost_usd += answer.cost_usd


def fail_call(session: Session, claim: Claim, call: Call, reason: str) -> None:
    """No answer came; nothing is charged and nothing stays reserved."""
    row = _rows(session, claim, call)[-1]
    row.state = LlmCallState.FAILED
    row.response = {"error": reason[:2_000]}
    row.cost_usd = 0.0
    row.finished_at = func.now()


def _rows(session: Session, claim: Claim, call: Call) -> list[LlmCall]:
    query = select(LlmCall).where(LlmCall.step_id == claim.step_id, LlmCall.purpose == call.purpose)
    return list(session.scalars(query.order_by(LlmCall.sequence)))


def _reserved(session: Session, job: Job) -> float:
    query = select(func.sum(LlmCall.cost_usd))
    reserved = session.scalars(query.where(LlmCall.job_id == job.id, LlmCall.state == LlmCallState.STARTED)).one()
    return reserved or 0.0
