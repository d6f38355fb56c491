"""``/v1/jobs/{job}/calls``: a job's calls of language models, their answers and their cost."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from api.dependencies import Limit, TeamId, Transaction, plain_text
from api.documentation import errors
from cupilot.domain.states import LlmCallState
from cupilot.schemas import CallPage, CallView
from cupilot.storage.jobs import call_views as views

router = APIRouter(prefix="/v1/jobs/{job}", tags=["results"])

Role = Annotated[str | None, Query(max_length=32, examples=["translator"], description="The agent that asked.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the previous page.")]


@router.get("/calls", summary="List a job's model calls", responses=errors(401, 404, 422))
def list_calls(
    *,
    session: Transaction,
    team: TeamId,
    job: UUID,
    role: Role = None,
    state: LlmCallState | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> CallPage:
    """List the job's model calls, oldest first, with failed, lost and cached ones."""
    role = plain_text("role", role)
    return views.list_calls(session, team, job, role=role, state=state, cursor=cursor, limit=limit)


@router.get("/calls/{call}", summary="A model call with its prompt and answer", responses=errors(401, 404, 410))
def get_call(session: Transaction, team: TeamId, job: UUID, call: UUID) -> CallView:
    """Get a model call as it was sent and answered, with secrets removed."""
    return views.call_view(session, team, job, call)


@router.get("/candidates/{candidate}/calls", summary="List a candidate's model calls", responses=errors(401, 404, 422))
def list_candidate_calls(
    *,
    session: Transaction,
    team: TeamId,
    job: UUID,
    candidate: str,
    role: Role = None,
    state: LlmCallState | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> CallPage:
    """List the calls that made a candidate, by its id or ordinal: crossover, translation, revisions."""
    role = plain_text("role", role)
    return views.list_calls(session, team, job, candidate=candidate, role=role, state=state, cursor=cursor, limit=limit)
