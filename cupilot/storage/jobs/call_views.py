"""Model calls as the REST boundary shows them: a job's or a candidate's, one in detail, and their costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Select, case, func, select, tuple_
from sqlalchemy.orm import Session, defer

from cupilot.domain.errors import NotFound, Pruned
from cupilot.domain.model_call import Answer, NoAnswer
from cupilot.domain.states import LlmCallState
from cupilot.schemas import CallPage, CallSummary, CallView, Spending, ToolUse, Turn
from cupilot.storage.db.cursor import decode_cursor, encode_cursor
from cupilot.storage.db.tables.jobs import Candidate
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.candidate_views import find_candidate
from cupilot.storage.jobs.jobs import get_job

_Row = Select[LlmCall, str, int]
"""A call, its step's key and its candidate's ordinal."""


def list_calls(
    session: Session,
    team: UUID,
    job_id: UUID,
    *,
    candidate: str | None = None,
    role: str | None = None,
    state: LlmCallState | None = None,
    cursor: str | None,
    limit: int,
) -> CallPage:
    """Return a job's calls, oldest first; ``candidate`` is an id or an ordinal. NotFound without it."""
    query = _rows().where(LlmCall.job_id == get_job(session, team, job_id).id).options(defer(LlmCall.request))
    if candidate is not None:
        query = query.where(Candidate.id == find_candidate(session, team, job_id, candidate).id)
    if role is not None:
        query = query.where(LlmCall.role == role)
    if state is not None:
        query = query.where(LlmCall.state == state)
    if cursor:
        query = query.where(tuple_(LlmCall.created_at, LlmCall.id) > decode_cursor(cursor))
    rows = session.execute(query.order_by(LlmCall.created_at, LlmCall.id).limit(limit + 1)).all()
    page = rows[:limit]
    return CallPage(
        items=[CallSummary(**_fields(*row)) for row in page],
        next_cursor=encode_cursor(page[-1][0].created_at, page[-1][0].id) if len(rows) > limit else None,
    )


def call_view(session: Session, team: UUID, job_id: UUID, call_id: UUID) -> CallView:
    """Return one call with prompt and answer; NotFound where the team's job has none such."""
    job = get_job(session, team, job_id)
    row = session.execute(_rows().where(LlmCall.job_id == job.id, LlmCall.id == call_id)).one_or_none()
    if row is None:
        raise NotFound("the job has no such model call", hint="list them with GET .../calls", where="call")
    call, request = row[0], row[0].request
    if request is None:
        raise Pruned("the model call's prompt and answer", job.pruned_at)
    answer = call.response if isinstance(call.response, Answer) else None
    return CallView(
        **_fields(*row),
        job=call.job_id,
        messages=[_turn(message) for message in request.messages],
        prompt_hash=request.prompt_hash,
        parameters=dict(request.parameters),
        answer=answer.text if answer else None,
        tool_calls=[ToolUse(name=call.name, arguments=call.arguments) for call in answer.tool_calls] if answer else [],
        finish_reason=answer.finish_reason if answer else None,
        reasoning_tokens=answer.reasoning_tokens if answer else None,
        seconds=answer.seconds if answer else None,
    )


def _turn(message: Mapping[str, Any]) -> Turn:
    called = (call["function"] for call in message.get("tool_calls", ()))
    uses = [ToolUse(name=function["name"], arguments=function["arguments"]) for function in called]
    return Turn(role=message["role"], content=message["content"], tool_calls=uses)


def spending(session: Session, job_id: UUID) -> list[Spending]:
    """Return what a job's calls cost by role and model, the dearest first."""
    answered, cached = LlmCall.state == LlmCallState.ANSWERED, LlmCall.cached
    paid = answered & ~cached
    query = (
        select(
            LlmCall.role,
            LlmCall.model,
            func.count().label("calls"),
            func.count().filter(cached).label("cached"),
            func.count(LlmCall.complaint).label("unusable"),
            func.count().filter(LlmCall.state.in_((LlmCallState.FAILED, LlmCallState.LOST))).label("unanswered"),
            func.coalesce(func.sum(LlmCall.prompt_tokens).filter(paid), 0).label("prompt_tokens"),
            func.coalesce(func.sum(LlmCall.completion_tokens).filter(paid), 0).label("completion_tokens"),
            func.sum(case((answered, LlmCall.cost_usd), else_=0.0)).label("cost_usd"),
            func.sum(case((answered, 0.0), else_=LlmCall.cost_usd)).label("reserved_usd"),
        )
        .where(LlmCall.job_id == job_id)
        .group_by(LlmCall.role, LlmCall.model)
        .order_by(func.sum(LlmCall.cost_usd).desc(), LlmCall.role, LlmCall.model)
    )
    return [Spending(**row) for row in session.execute(query).mappings()]


def _rows() -> _Row:
    return (
        select(LlmCall, Step.key, Candidate.ordinal)
        .join(Step, Step.id == LlmCall.step_id)
        .outerjoin(Candidate, Candidate.id == Step.candidate_id)
    )


def _fields(call: LlmCall, key: str, ordinal: int | None) -> dict[str, Any]:
    return {
        "id": call.id,
        "candidate": ordinal,
        "step": key,
        "role": call.role,
        "purpose": call.purpose,
        "attempt": call.sequence,
        "model": call.model,
        "state": call.state,
        "cached": call.cached,
        "complaint": call.complaint,
        "error": call.response.error if isinstance(call.response, NoAnswer) else None,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "cost_usd": call.cost_usd,
        "created_at": call.created_at,
        "finished_at": call.finished_at,
    }
