"""Teams, users and API keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from cupilot.domain.people import Role, Scope
from cupilot.domain.quota import Quota
from cupilot.schemas.base import Request, Response

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$")]
"""Of a team or a user: letters, digits and ``._@+-``, so that it can stand in a path."""
KeyName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00]*$")]


class TeamRequest(Request):
    """A team to make."""

    name: Name
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    """Share of the cluster relative to other teams."""
    quota: Quota = Quota()


class TeamChange(Request):
    """Changes to a team; fields that are left out stay as they are."""

    weight: Annotated[float, Field(gt=0, le=1_000)] | None = None
    quota: Quota | None = None
    """Replaces all limits."""


class TeamView(Response):
    """A team."""

    id: UUID
    name: str
    weight: float
    quota: Quota
    members: int
    created_at: datetime


class TeamList(Response):
    """Teams, by name."""

    items: list[TeamView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class MemberRequest(Request):
    """The role to give a user in the team."""

    role: Role


class MemberView(Response):
    """A user of a team."""

    id: UUID
    name: str
    service_account: bool
    role: Role
    disabled: bool
    since: datetime


class MemberList(Response):
    """Members of a team, by name."""

    items: list[MemberView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class InvitationRequest(Request):
    """An invitation to make."""

    role: Role = Role.MEMBER
    """The role that whoever accepts it gets."""
    expires_days: Annotated[float, Field(gt=0, le=90)] = 7.0


class InvitationView(Response):
    """An invitation, with its secret, which is shown this once."""

    id: UUID
    team: str
    role: Role
    secret: str
    """Whoever is given it joins the team: `POST /v1/invitations/accept`."""
    expires_at: datetime


class InvitationAnswer(Request):
    """An invitation to accept."""

    secret: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class JoinedView(Response):
    """A team that the caller has joined."""

    team: str
    user: str
    role: Role


class ServiceAccountRequest(Request):
    """A service account to make."""

    name: Name
    role: Role = Role.MEMBER


class UserRequest(Request):
    """A person to add as a user."""

    name: Name
    cluster_admin: bool = False


class UserChange(Request):
    """Changes to a user; fields that are left out stay as they are."""

    cluster_admin: bool | None = None
    disabled: bool | None = None
    """None of a disabled user's keys is accepted."""


class UserView(Response):
    """A person."""

    id: UUID
    name: str
    cluster_admin: bool
    disabled: bool
    teams: dict[str, Role]
    """Roles by team."""
    created_at: datetime


class UserPage(Response):
    """Users, by name."""

    items: list[UserView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""
    next_after: str | None = None
    """The same for ``after``, which ``cursor`` replaces."""


class KeyRequest(Request):
    """An API key to make."""

    name: KeyName
    """Purpose of the key."""
    scope: Scope = Scope.SUBMIT
    """Limit of its use, whatever its user's role is."""
    expires_days: Annotated[float, Field(gt=0, le=3_650)] | None = 90.0
    """Null for a key that does not expire. A key that expires makes none that lives longer; left out, it is 90 days, or
    as long as that key has."""
    user: Name | None = None
    """Whose; yours where it is left out. For others' an admin of the team is needed."""
    team: Name | None = None
    """For which team; that of your key where it is left out. For another one a cluster admin is needed."""


class KeyView(Response):
    """An API key without its secret."""

    id: UUID
    prefix: str
    """The visible start of the key."""
    name: str
    user: str
    team: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    revoked_at: datetime | None = None


class NewKeyView(KeyView):
    """An API key with its secret, which is shown this once."""

    secret: str


class KeyList(Response):
    """Keys, the newest first."""

    items: list[KeyView]
    next_cursor: str | None = None
    """Give it as ``cursor`` to get the next page; null on the last."""


class CallerView(Response):
    """The caller: user, team, role and key."""

    user: str
    team: str
    role: Role
    """In the team."""
    scope: Scope
    """Of the key."""
    acts_as: Role
    """The smaller of the two: what requests with this key may do."""
    cluster_admin: bool
    expires_at: datetime | None = None
    """Of the key; null where it does not expire."""
