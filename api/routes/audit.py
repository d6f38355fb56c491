"""``/v1/audit``: requests that changed something or were refused."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from api.dependencies import Admin, Cursor, Limit, Transaction, plain_text
from api.documentation import errors
from cupilot.domain.value import Moment
from cupilot.schemas import AuditPage
from cupilot.storage.people.audit import AuditFilter, list_entries

MAX_ID = 2**63 - 1

router = APIRouter(prefix="/v1/audit", tags=["service"])

Word = Annotated[str | None, Query(max_length=200)]


@router.get("", summary="Who did what", responses=errors(401, 403, 422))
def list_audit(
    *,
    session: Transaction,
    caller: Admin,
    all_teams: Annotated[
        bool, Query(description="Every team's entries, and those of nobody: cluster admins only.")
    ] = False,
    principal: Word = None,
    key_prefix: Word = None,
    route: Word = None,
    resource: Annotated[str | None, Query(max_length=500, description="Its beginning, e.g. `/v1/jobs/3f2b`.")] = None,
    outcome: Literal["done", "refused", "failed"] | None = None,
    request_id: Word = None,
    since: Moment | None = None,
    until: Moment | None = None,
    cursor: Cursor = None,
    before: Annotated[
        int | None,
        Query(ge=0, le=MAX_ID, deprecated=True, description="Only older ones than this id; see `cursor`."),
    ] = None,
    limit: Limit = 50,
) -> AuditPage:
    """List requests that changed something or were refused, newest first. Admins of the team only."""
    if all_teams:
        caller.needs_cluster_admin()
    filters = AuditFilter(
        principal=plain_text("principal", principal),
        key_prefix=plain_text("key_prefix", key_prefix),
        route=plain_text("route", route),
        resource=plain_text("resource", resource),
        outcome=outcome,
        request_id=plain_text("request_id", request_id),
        since=since,
        until=until,
    )
    team = None if all_teams else caller.team_id
    return list_entries(session, team, filters, cursor=cursor, before=before, limit=limit)
