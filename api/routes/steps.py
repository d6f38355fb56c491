"""``/v1/jobs/{job}/steps`` and logs: a job's pieces of work and their outcomes."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from api.dependencies import Cursor, Limit, TeamId, Transaction, plain_text
from api.documentation import errors
from cupilot.domain.states import StepState
from cupilot.schemas.steps import StepPage
from cupilot.storage.jobs import step_views as views

MAX_LINES = 10_000
TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}

router = APIRouter(prefix="/v1/jobs/{job}", tags=["results"])


@router.get("/steps", summary="List a job's steps", responses=errors(401, 404, 422))
def list_steps(
    *,
    session: Transaction,
    team: TeamId,
    job: UUID,
    state: StepState | None = None,
    key: Annotated[
        str | None, Query(max_length=100, description="The step of this name, e.g. `c3/evaluate/0`.")
    ] = None,
    candidate: Annotated[str | None, Query(max_length=40, description="Steps of this one, by id or ordinal.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> StepPage:
    """List model calls and work on devices, oldest first: worker, attempts, errors, times."""
    return views.list_steps(
        session,
        team,
        job,
        state=state,
        key=plain_text("key", key),
        candidate=candidate,
        cursor=cursor,
        limit=limit,
    )


@router.get(
    "/log",
    summary="A job's log",
    response_class=Response,
    responses={**errors(401, 404, 422), 200: {"description": "A line an event, oldest first.", **TEXT}},
)
def get_job_log(
    session: Transaction,
    team: TeamId,
    job: UUID,
    lines: Annotated[int, Query(ge=1, le=MAX_LINES, description="At most this many lines, the newest.")] = 1_000,
) -> Response:
    """Get the newest events as lines of text."""
    return _text(views.job_log(session, team, job, lines=lines), f"cupilot-{job}.log")


@router.get(
    "/steps/{step}/log",
    summary="A step's log",
    response_class=Response,
    responses={**errors(401, 404, 410), 200: {"description": "At most a million characters.", **TEXT}},
)
def get_step_log(session: Transaction, team: TeamId, job: UUID, step: UUID) -> Response:
    """Get a step's attempts, errors, model calls, compiler output and the judge's findings, as text."""
    return _text(views.step_log(session, team, job, step), f"cupilot-{step}.log")


def _text(content: str, name: str) -> Response:
    # What models and compilers wrote is in it: no browser is to make anything of it but text.
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(content.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)
