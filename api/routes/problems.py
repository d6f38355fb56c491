"""``/v1/problems``: the problems that jobs can be started on."""

from __future__ import annotations

from fastapi import APIRouter

from api.dependencies import Cursor, Limit, TeamId, Transaction
from api.documentation import errors
from cupilot.schemas import ProblemPage, ProblemView
from cupilot.storage.jobs import problems as views

router = APIRouter(prefix="/v1/problems", tags=["problems"])


@router.get("", summary="List problems", responses=errors(401, 422))
def list_problems(session: Transaction, team: TeamId, cursor: Cursor = None, limit: Limit = 50) -> ProblemPage:
    """List problems: all built-in ones on the first page, then those that your team submitted, newest first."""
    return views.list_problems(session, team, cursor=cursor, limit=limit)


@router.get("/{problem}", summary="A problem with its source", responses=errors(401, 404))
def get_problem(session: Transaction, team: TeamId, problem: str) -> ProblemView:
    """Get a problem by a built-in's name or the id of one of your team's."""
    return views.problem_view(session, team, problem)
