"""Calls of the client about teams, users, API keys, and the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Stream, all_items, path
from cupilot.domain.people import Role

if TYPE_CHECKING:
    from cupilot.schemas.people import (
        CallerView,
        InvitationRequest,
        InvitationView,
        JoinedView,
        KeyList,
        KeyRequest,
        KeyView,
        MemberList,
        MemberView,
        NewKeyView,
        TeamChange,
        TeamList,
        TeamRequest,
        TeamView,
        UserChange,
        UserPage,
        UserRequest,
        UserView,
    )


class PeopleCalls:
    """``/v1/me``, ``/v1/teams``, ``/v1/users``, ``/v1/keys``."""

    @call
    def me(self) -> Call[CallerView]:
        """Return the user, team and role behind the key."""
        return Call(schemas.CallerView, "GET", "/v1/me")

    @call
    def teams(self, *, cursor: str | None = None, limit: int | None = None) -> Call[TeamList]:
        """Return the key's team; all of them for a cluster admin, or a page of them by name."""
        return Call(schemas.TeamList, "GET", "/v1/teams", params={"cursor": cursor, "limit": limit})

    @stream
    def all_teams(self) -> Stream[TeamView]:
        """Return all of them, fetched a page at a time."""
        return all_items(
            lambda cursor: PeopleCalls.teams.ask(self, cursor=cursor, limit=LONGEST_PAGE), lambda page: page.next_cursor
        )

    @call
    def team(self, team: str) -> Call[TeamView]:
        """Return a team by name."""
        return Call(schemas.TeamView, "GET", path("v1", "teams", team))

    @call
    def make_team(self, request: TeamRequest) -> Call[TeamView]:
        """Make a team; for cluster admins."""
        return Call(schemas.TeamView, "POST", "/v1/teams", body=request)

    @call
    def change_team(self, team: str, change: TeamChange) -> Call[TeamView]:
        """Change weight or quota; for cluster admins."""
        return Call(schemas.TeamView, "PATCH", path("v1", "teams", team), body=change, repeatable=True)

    @call
    def members(self, team: str, *, cursor: str | None = None, limit: int | None = None) -> Call[MemberList]:
        """Return the members of a team with their roles: all, or a page of them by name."""
        where = path("v1", "teams", team, "members")
        return Call(schemas.MemberList, "GET", where, params={"cursor": cursor, "limit": limit})

    @stream
    def all_members(self, team: str) -> Stream[MemberView]:
        """Yield all members of a team, fetched a page at a time."""
        return all_items(
            lambda cursor: PeopleCalls.members.ask(self, team, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def put_member(self, team: str, user: str, role: Role | str) -> Call[MemberView]:
        """Change a member's role, for the team's admins; a cluster admin may also add a known user."""
        body = schemas.MemberRequest(role=Role(role))
        return Call(schemas.MemberView, "PUT", path("v1", "teams", team, "members", user), body=body)

    @call
    def invite(self, team: str, request: InvitationRequest | None = None) -> Call[InvitationView]:
        """Make an invitation to the team and return it with its secret; for the team's admins."""
        where = path("v1", "teams", team, "invitations")
        return Call(schemas.InvitationView, "POST", where, body=request or schemas.InvitationRequest())

    @call
    def accept_invitation(self, secret: str) -> Call[JoinedView]:
        """Join the team that an invitation is for."""
        return Call(schemas.JoinedView, "POST", "/v1/invitations/accept", body=schemas.InvitationAnswer(secret=secret))

    @call
    def remove_member(self, team: str, user: str) -> Call[None]:
        """Take somebody out of the team; for its admins."""
        return Call(type(None), "DELETE", path("v1", "teams", team, "members", user))

    @call
    def make_service_account(self, team: str, name: str, role: Role | str = Role.MEMBER) -> Call[MemberView]:
        """Make a service account: a user of this team only, for a program; for its admins."""
        body = schemas.ServiceAccountRequest(name=name, role=Role(role))
        return Call(schemas.MemberView, "POST", path("v1", "teams", team, "accounts"), body=body)

    @call
    def users(self, *, cursor: str | None = None, limit: int = 50) -> Call[UserPage]:
        """Return a page of users, by name; for cluster admins."""
        return Call(schemas.UserPage, "GET", "/v1/users", params={"cursor": cursor, "limit": limit})

    @stream
    def all_users(self) -> Stream[UserView]:
        """Return all users, fetched a page at a time."""
        return all_items(
            lambda cursor: PeopleCalls.users.ask(self, cursor=cursor, limit=LONGEST_PAGE), lambda page: page.next_cursor
        )

    @call
    def user(self, user: str) -> Call[UserView]:
        """Return a user by name; for cluster admins."""
        return Call(schemas.UserView, "GET", path("v1", "users", user))

    @call
    def make_user(self, request: UserRequest) -> Call[UserView]:
        """Make a person known; for cluster admins."""
        return Call(schemas.UserView, "POST", "/v1/users", body=request)

    @call
    def change_user(self, user: str, change: UserChange) -> Call[UserView]:
        """Disable or enable a user, or make them a cluster admin; for cluster admins."""
        return Call(schemas.UserView, "PATCH", path("v1", "users", user), body=change, repeatable=True)

    @call
    def keys(self, *, team: str | None = None, cursor: str | None = None, limit: int | None = None) -> Call[KeyList]:
        """Return your keys for your key's team; all of the team's for an admin; or a page of them, newest first.

        Another ``team``'s for a cluster admin.
        """
        return Call(schemas.KeyList, "GET", "/v1/keys", params={"team": team, "cursor": cursor, "limit": limit})

    @stream
    def all_keys(self, *, team: str | None = None) -> Stream[KeyView]:
        """Return the same keys, fetched a page at a time."""
        return all_items(
            lambda cursor: PeopleCalls.keys.ask(self, team=team, cursor=cursor, limit=LONGEST_PAGE),
            lambda page: page.next_cursor,
        )

    @call
    def make_key(self, request: KeyRequest) -> Call[NewKeyView]:
        """Make a key and return its secret, which is shown this once."""
        return Call(schemas.NewKeyView, "POST", "/v1/keys", body=request)

    @call
    def revoke_key(self, key: str) -> Call[KeyView]:
        """Refuse a key from now on, by id or prefix."""
        return Call(schemas.KeyView, "DELETE", path("v1", "keys", key))
