"""The team's page, and what its forms do: members, invitations, keys, quota. The same functions as REST."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.dependencies import Transaction
from api.pages import charts
from api.pages.visits import HOME, Fields, PageRoute, Visitor, page, same_site, seen
from cupilot.domain.people import Caller, Role, Scope
from cupilot.domain.quota import Quota, QuotaPeriod
from cupilot.schemas.people import InvitationRequest, KeyRequest, MemberRequest, ServiceAccountRequest, TeamChange
from cupilot.storage.db.tables.people import Team
from cupilot.storage.jobs import timelines
from cupilot.storage.jobs.steering_views import quota_view
from cupilot.storage.people import invitations, people
from cupilot.storage.people.identities import teams_of

LIMITS: dict[str, Callable[[str], Any]] = {
    "max_running_jobs": int,
    "max_queued_jobs": int,
    "gpu_seconds": float,
    "model_usd": float,
    "period": str,
}
"""Fields of the quota's form, as :class:`cupilot.domain.quota.Quota` names them; an empty one is no limit."""

router = APIRouter(prefix=f"{HOME}/team", route_class=PageRoute, include_in_schema=False)


def person(caller: Visitor, request: Request) -> Caller:
    """Return who sends a form of this service's own; the functions behind it say which role it needs."""
    same_site(request)
    caller.needs_writing_key()
    return caller


Person = Annotated[Caller, Depends(person)]


@router.get("")
def show(request: Request, session: Transaction, caller: Visitor) -> Response:
    """Show the team's quota and use, its members and its keys."""
    return page(
        "team",
        caller,
        quota=quota_view(session, caller.team_id),
        used=charts.line(timelines.gpu_days(session, caller.team_id), "days from today", "device seconds a day"),
        members=people.members_of(session, _team(session, caller)),
        keys=people.keys_for(session, caller),
        other_teams=_other_teams(request, session, caller),
        roles=list(Role),
        scopes=[scope for scope in Scope if scope.role.rank <= caller.acts_as.rank],
        periods=list(QuotaPeriod),
    )


@router.post("/invitations")
def invite(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Make an invitation, and show its secret once."""
    caller.needs(Role.ADMIN)
    wanted = InvitationRequest.model_validate(fields.given(role=str, expires_days=float))
    lifetime = timedelta(days=wanted.expires_days)
    made, secret = invitations.invite(session, caller, _team(session, caller), wanted.role, lifetime)
    return page(
        "secret",
        caller,
        what=f"An invitation to {caller.team} as {made.role.value}",
        secret=secret,
        use=f"cupilot team join {secret}",
        until=made.expires_at,
    )


@router.post("/accounts")
def make_account(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Make a user for a program."""
    caller.needs(Role.ADMIN)
    wanted = ServiceAccountRequest.model_validate(fields.given(name=str, role=str))
    people.make_service_account(session, _team(session, caller), wanted.name, wanted.role)
    return seen("/team")


@router.post("/members")
def change_member(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Give a member another role, or remove them."""
    caller.needs(Role.ADMIN)
    name, team = fields.needed("user"), _team(session, caller)
    if fields.text("action") == "remove":
        people.remove_member(session, team, name)
    else:
        people.put_member(session, caller, team, name, MemberRequest.model_validate(fields.given(role=str)).role)
    return seen("/team")


@router.post("/keys")
def make_key(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Make a key, and show its secret once."""
    given = fields.given(name=str, scope=str, expires_days=float, user=str)
    wanted = KeyRequest.model_validate(given)
    key, owner, _, secret = people.make_key(
        session,
        caller,
        wanted.name,
        scope=wanted.scope,
        lifetime=None if wanted.expires_days is None else timedelta(days=wanted.expires_days),
        shorten="expires_days" not in given,
        user=wanted.user,
        team=None,
    )
    return page(
        "secret",
        caller,
        what=f"A key of {owner.name} with the scope {key.scope.value}",
        secret=secret,
        use="cupilot login ADDRESS",
        until=key.expires_at,
    )


@router.post("/keys/revoke")
def revoke_key(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Refuse a key from now on."""
    people.revoke_key(session, caller, fields.needed("key"))
    return seen("/team")


@router.post("/quota")
def change_quota(session: Transaction, caller: Person, fields: Fields) -> Response:
    """Set the team's weight and limits; for cluster admins."""
    caller.needs_cluster_admin()
    given = {"quota": Quota.model_validate(fields.given(**LIMITS)), **fields.given(weight=float)}
    wanted = TeamChange.model_validate(given)
    people.change_team(session, _team(session, caller), wanted.weight, wanted.quota)
    return seen("/team")


def _team(session: Session, caller: Caller) -> Team:
    return session.get_one(Team, caller.team_id)


def _other_teams(request: Request, session: Session, caller: Caller) -> list[str]:
    """Return the teams to which single sign-on leads the caller from here."""
    if request.app.state.provider is None:
        return []
    return [name for name in teams_of(session, caller.user_id) if name != caller.team]
