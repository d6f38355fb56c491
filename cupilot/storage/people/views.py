"""Teams, members, users and API keys as the REST boundary shows them."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cupilot.domain.people import Caller
from cupilot.schemas.people import CallerView, InvitationView, KeyView, MemberView, TeamView, UserView
from cupilot.storage.db.tables.people import ApiKey, Invitation, Membership, Team, User
from cupilot.storage.people.people import count_members, roles_of
from cupilot.storage.people.quotas import quota_of


def caller_view(session: Session, caller: Caller) -> CallerView:
    """Return the caller with its team and role, and the time until which its key is valid."""
    return CallerView(
        user=caller.user,
        team=caller.team,
        role=caller.role,
        scope=caller.scope,
        acts_as=caller.acts_as,
        cluster_admin=caller.cluster_admin,
        expires_at=session.get_one(ApiKey, caller.key_id).expires_at,
    )


def team_view(session: Session, row: Team) -> TeamView:
    """Return a team with its quota and the number of its members."""
    return TeamView(
        id=row.id,
        name=row.name,
        weight=row.weight,
        quota=quota_of(row),
        members=count_members(session, row),
        created_at=row.created_at,
    )


def member_view(user: User, membership: Membership) -> MemberView:
    """Return a member of a team with the role."""
    return MemberView(
        id=user.id,
        name=user.name,
        service_account=user.team_id is not None,
        role=membership.role,
        disabled=user.disabled_at is not None,
        since=membership.created_at,
    )


def invitation_view(invitation: Invitation, team: Team, secret: str) -> InvitationView:
    """Return an invitation with its secret."""
    return InvitationView(
        id=invitation.id, team=team.name, role=invitation.role, secret=secret, expires_at=invitation.expires_at
    )


def user_view(session: Session, row: User) -> UserView:
    """Return a person with the teams and roles."""
    return UserView(
        id=row.id,
        name=row.name,
        cluster_admin=row.cluster_admin,
        disabled=row.disabled_at is not None,
        teams=roles_of(session, row),
        created_at=row.created_at,
    )


def key_view(key: ApiKey, user: User, team: Team) -> KeyView:
    """Return an API key without its secret."""
    return KeyView(
        id=key.id,
        prefix=key.prefix,
        name=key.name,
        user=user.name,
        team=team.name,
        scope=key.scope,
        created_at=key.created_at,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        revoked_at=key.revoked_at,
    )
