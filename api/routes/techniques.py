"""``/v1/techniques``: the catalogue and the team's invented techniques, with their measured effects."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import Cursor, Limit, StrictRoute, TeamId, Transaction
from api.documentation import TECHNIQUES_EXAMPLE, errors
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.schemas import TechniquePage
from cupilot.storage.pool import technique_views as views

router = APIRouter(prefix="/v1", tags=["pool"], route_class=StrictRoute)


@router.get(
    "/techniques",
    summary="List techniques",
    responses={**errors(401, 422), 200: {"content": {"application/json": {"example": TECHNIQUES_EXAMPLE}}}},
)
def list_techniques(
    *,
    session: Transaction,
    team: TeamId,
    kind: Annotated[Standing | None, Query(description="Only techniques of this standing.")] = None,
    target: Target | None = None,
    technique: Annotated[str | None, Query(max_length=64, description="Only this one.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> TechniquePage:
    """List the catalogue's techniques and those that your team's agents invented, for each target, by id.

    Counts and effects are of your team's own measurements. An invented technique is `novel` until results promote it,
    with at least three kernels that count on two problems and a positive effect; then agents are offered it.
    """
    return views.list_techniques(
        session, team, kind=kind, target=target, technique=technique, cursor=cursor, limit=limit
    )
