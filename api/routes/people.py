"""Teams, users and API keys, and the caller."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import Admin, AnyLimit, ClusterAdmin, Cursor, Limit, StrictRoute, Transaction, Viewer, plain_text
from api.documentation import errors
from cupilot.schemas.people import (
    CallerView,
    InvitationAnswer,
    InvitationRequest,
    InvitationView,
    JoinedView,
    KeyList,
    KeyRequest,
    KeyView,
    MemberList,
    MemberRequest,
    MemberView,
    NewKeyView,
    ServiceAccountRequest,
    TeamChange,
    TeamList,
    TeamRequest,
    TeamView,
    UserChange,
    UserPage,
    UserRequest,
    UserView,
)
from cupilot.storage.db.cursor import cut, decode_cursor, decode_key, encode_cursor, encode_key, identifier
from cupilot.storage.people import invitations, people, views

router = APIRouter(prefix="/v1", tags=["people"], route_class=StrictRoute)


@router.get("/me", summary="Who you are", responses=errors(401))
def get_me(session: Transaction, caller: Viewer) -> CallerView:
    """Get the user, team and role of your key, what the key may be used for, and when it expires."""
    return views.caller_view(session, caller)


@router.get("/teams", summary="List teams", responses=errors(401, 422))
def list_teams(session: Transaction, caller: Viewer, cursor: Cursor = None, limit: AnyLimit = None) -> TeamList:
    """List your key's team; a cluster admin sees all."""
    rows = people.teams_for(session, caller, after=_name(cursor, "teams"), limit=limit)
    shown, following = cut(rows, limit, lambda team: encode_key("teams", team.name))
    return TeamList(items=[views.team_view(session, team) for team in shown], next_cursor=following)


@router.post("/teams", status_code=201, summary="Make a team", responses=errors(401, 403, 409, 422))
def make_team(session: Transaction, caller: ClusterAdmin, request: TeamRequest) -> TeamView:  # noqa: ARG001
    """Make a team, with its weight and its quota."""
    return views.team_view(session, people.make_team(session, request.name, request.weight, request.quota))


@router.get("/teams/{team}", summary="A team", responses=errors(401, 404))
def get_team(session: Transaction, caller: Viewer, team: str) -> TeamView:
    """Get a team by its name."""
    return views.team_view(session, people.team_for(session, caller, _text(team)))


@router.patch("/teams/{team}", summary="Change a team", responses=errors(401, 403, 404, 422))
def change_team(session: Transaction, caller: ClusterAdmin, team: str, request: TeamChange) -> TeamView:
    """Change a team's weight and quota, in force at once."""
    row = people.team_for(session, caller, _text(team))
    return views.team_view(session, people.change_team(session, row, request.weight, request.quota))


@router.get("/teams/{team}/members", summary="List a team's members", responses=errors(401, 404, 422))
def list_members(
    session: Transaction, caller: Viewer, team: str, cursor: Cursor = None, limit: AnyLimit = None
) -> MemberList:
    """List the members, persons and service accounts, with their roles."""
    row = people.team_for(session, caller, _text(team))
    after = None
    if cursor is not None:
        name, user = decode_key(cursor, "members", str, str)
        after = name, identifier(user)
    rows = people.members_of(session, row, after=after, limit=limit)
    shown, following = cut(rows, limit, lambda pair: encode_key("members", pair[0].name, str(pair[0].id)))
    return MemberList(items=[views.member_view(*pair) for pair in shown], next_cursor=following)


@router.put("/teams/{team}/members/{user}", summary="Give a role", responses=errors(401, 403, 404, 422))
def put_member(session: Transaction, caller: Admin, team: str, user: str, request: MemberRequest) -> MemberView:
    """Change a member's role. A cluster admin may also add a known user to the team; others invite (`invitations`)."""
    row = people.administered(session, caller, _text(team))
    return views.member_view(*people.put_member(session, caller, row, _text(user), request.role))


@router.delete(
    "/teams/{team}/members/{user}",
    status_code=204,
    summary="Remove a user from a team",
    responses=errors(401, 403, 404),
)
def remove_member(session: Transaction, caller: Admin, team: str, user: str) -> None:
    """Remove a member. Their keys for the team are refused from now on."""
    people.remove_member(session, people.administered(session, caller, _text(team)), _text(user))


@router.post(
    "/teams/{team}/invitations",
    status_code=201,
    summary="Invite to a team",
    responses=errors(401, 403, 404, 422),
)
def invite(session: Transaction, caller: Admin, team: str, request: InvitationRequest) -> InvitationView:
    """Make an invitation; give its secret, which is shown only in this answer, to whom you want in the team.

    Whoever has a key of this service and the secret joins, once.
    """
    row = people.administered(session, caller, _text(team))
    lifetime = timedelta(days=request.expires_days)
    invitation, secret = invitations.invite(session, caller, row, request.role, lifetime)
    return views.invitation_view(invitation, row, secret)


@router.post("/invitations/accept", summary="Join a team", responses=errors(401, 403, 404, 409, 422))
def accept_invitation(session: Transaction, caller: Viewer, request: InvitationAnswer) -> JoinedView:
    """Join the team that an invitation is for. An admin of it can now make you a key for it."""
    team, user, membership = invitations.accept(session, caller, request.secret)
    return JoinedView(team=team.name, user=user.name, role=membership.role)


@router.post(
    "/teams/{team}/accounts",
    status_code=201,
    summary="Make a service account",
    responses=errors(401, 403, 404, 409, 422),
)
def make_service_account(session: Transaction, caller: Admin, team: str, request: ServiceAccountRequest) -> MemberView:
    """Make a user for a program, in this team only; give it a key with `POST /v1/keys`."""
    row = people.administered(session, caller, _text(team))
    return views.member_view(*people.make_service_account(session, row, request.name, request.role))


@router.get("/users", summary="List users", responses=errors(401, 403, 422))
def list_users(
    session: Transaction,
    caller: ClusterAdmin,  # noqa: ARG001
    cursor: Cursor = None,
    after: Annotated[
        str | None, Query(max_length=100, deprecated=True, description="`next_after`; see `cursor`.")
    ] = None,
    limit: Limit = 50,
) -> UserPage:
    """List persons by name, with their teams."""
    rows = people.people(session, after=_name(cursor, "users") or plain_text("after", after), limit=limit)
    shown, following = cut(rows, limit, lambda row: encode_key("users", row.name))
    items = [views.user_view(session, row) for row in shown]
    return UserPage(items=items, next_cursor=following, next_after=items[-1].name if following else None)


@router.post("/users", status_code=201, summary="Create a user", responses=errors(401, 403, 409, 422))
def make_user(session: Transaction, caller: ClusterAdmin, request: UserRequest) -> UserView:  # noqa: ARG001
    """Make a user for a person; next add them to a team and make them a key."""
    return views.user_view(session, people.make_person(session, request.name, cluster_admin=request.cluster_admin))


@router.get("/users/{user}", summary="A user", responses=errors(401, 403, 404))
def get_user(session: Transaction, caller: ClusterAdmin, user: str) -> UserView:  # noqa: ARG001
    """Get a user by name, with their teams."""
    return views.user_view(session, people.person(session, _text(user)))


@router.patch("/users/{user}", summary="Change a user", responses=errors(401, 403, 404, 409, 422))
def change_user(session: Transaction, caller: ClusterAdmin, user: str, request: UserChange) -> UserView:  # noqa: ARG001
    """Make a user a cluster admin or not, disable or enable them. The last cluster admin remains one."""
    row = people.person(session, _text(user))
    changed = people.change_person(session, row, cluster_admin=request.cluster_admin, disabled=request.disabled)
    return views.user_view(session, changed)


@router.get("/keys", summary="List API keys", responses=errors(401, 404, 422))
def list_keys(
    session: Transaction,
    caller: Viewer,
    team: Annotated[str | None, Query(max_length=100, description="Another team: cluster admins only.")] = None,
    cursor: Cursor = None,
    limit: AnyLimit = None,
) -> KeyList:
    """List your keys for your key's team; an admin sees all of the team's. Secrets are never shown again."""
    before = None if cursor is None else decode_cursor(cursor, "keys")
    rows = people.keys_for(session, caller, plain_text("team", team), before=before, limit=limit)
    shown, following = cut(rows, limit, lambda row: encode_cursor(row[0].created_at, row[0].id, "keys"))
    return KeyList(items=[views.key_view(*row) for row in shown], next_cursor=following)


@router.post("/keys", status_code=201, summary="Make an API key", responses=errors(401, 403, 404, 422))
def make_key(session: Transaction, caller: Viewer, request: KeyRequest) -> NewKeyView:
    """Make a key; its secret is shown only in this answer.

    A key may do no more than the key that made it, and expires no later.
    """
    lifetime = None if request.expires_days is None else timedelta(days=request.expires_days)
    key, user, team, secret = people.make_key(
        session,
        caller,
        request.name,
        scope=request.scope,
        lifetime=lifetime,
        shorten="expires_days" not in request.model_fields_set,
        user=request.user,
        team=request.team,
    )
    return NewKeyView(**views.key_view(key, user, team).model_dump(), secret=secret)


@router.delete("/keys/{key}", summary="Revoke an API key", responses=errors(401, 403, 404, 409))
def revoke_key(session: Transaction, caller: Viewer, key: str) -> KeyView:
    """Revoke a key, by id or prefix; it is refused from now on.

    You may revoke your own, as an admin any of the team's, as a cluster admin any; but not the last key by which a
    cluster admin can get in. Repeating it is harmless.
    """
    return views.key_view(*people.revoke_key(session, caller, key))


def _name(cursor: str | None, listed: str) -> str | None:
    """Return the name after which a page of a list starts."""
    return None if cursor is None else str(decode_key(cursor, listed, str)[0])


def _text(name: str) -> str:
    return plain_text("path", name) or ""
