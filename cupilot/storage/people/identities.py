"""Subjects of an identity provider and the users that they are here, and the keys of their sessions.

Nobody becomes a user, a member or an admin by signing in: a cluster admin has made a user of the e-mail address, and a
team has taken them in. The first sign-in ties the provider's subject to the user, since addresses are given to others.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from cupilot.domain.people import Forbidden, Identity, Role, Scope
from cupilot.storage.db.changes import note
from cupilot.storage.db.tables.people import ApiKey, Membership, Team, User, UserIdentity
from cupilot.storage.people.teams import create_api_key

SESSION = "single sign-on"
"""Name of a session's key."""
SCOPES = {Role.VIEWER: Scope.READ, Role.MEMBER: Scope.SUBMIT, Role.ADMIN: Scope.ADMIN}


class NotInvited(Forbidden):
    """Whoever signed in is no member here. One answer, whether or not the service knows them."""

    code = "not_invited"


def open_session(session: Session, person: Identity, team: str | None, seconds: float) -> str:
    """Return the secret of a new key for somebody's session in a team; of several the named one, or the first by name.

    It allows what their role there does, and never what only a cluster admin may. Raises :class:`NotInvited`.
    """
    user = _user_of(session, person)
    memberships = (
        select(Team, Membership.role)
        .join(Membership, Membership.team_id == Team.id)
        .where(Membership.user_id == user.id)
        .order_by(Team.name)
    )
    if team is not None:
        memberships = memberships.where(Team.name == team)
    row = session.execute(memberships.limit(1)).one_or_none()
    if row is None:
        raise _not_invited(person)
    home, role = row
    close_expired = delete(ApiKey).where(
        ApiKey.user_id == user.id, ApiKey.name == SESSION, ApiKey.expires_at < func.now()
    )
    session.execute(close_expired)
    scope = SCOPES[Role.MEMBER if user.cluster_admin and role is Role.ADMIN else role]
    _, secret = create_api_key(session, home, SESSION, user=user, scope=scope, lifetime=timedelta(seconds=seconds))
    return secret


def close_session(session: Session, key_id: uuid.UUID) -> None:
    """Revoke the key of a session; not one that somebody made."""
    key = session.get(ApiKey, key_id)
    if key is not None and key.name == SESSION and key.revoked_at is None:
        key.revoked_at = func.now()
        session.flush()


def forget_identities(session: Session, user: User) -> None:
    """Untie a user from whoever signed in as them; the next sign-in by a verified address ties them again."""
    session.execute(delete(UserIdentity).where(UserIdentity.user_id == user.id))


def teams_of(session: Session, user_id: uuid.UUID) -> list[str]:
    """Return the names of the teams that a user is in."""
    query = select(Team.name).join(Membership, Membership.team_id == Team.id).where(Membership.user_id == user_id)
    return list(session.scalars(query.order_by(Team.name)))


def _user_of(session: Session, person: Identity) -> User:
    here = (UserIdentity.issuer == person.issuer) & (UserIdentity.subject == person.subject)
    user = session.scalars(select(User).join(UserIdentity, UserIdentity.user_id == User.id).where(here)).one_or_none()
    if user is None:
        user = _tied(session, person)
    if user is None or user.disabled_at is not None:
        raise _not_invited(person)
    return user


def _tied(session: Session, person: Identity) -> User | None:
    """Tie the subject to the person of its verified address, unless another subject is tied to them already."""
    if person.email is None:
        return None
    named = User.team_id.is_(None) & (func.lower(User.name) == person.email.lower())
    users = session.scalars(select(User).where(named, User.disabled_at.is_(None)).with_for_update()).all()
    if len(users) != 1:
        return None
    user = users[0]
    taken = (UserIdentity.user_id == user.id) & (UserIdentity.issuer == person.issuer)
    if session.scalars(select(UserIdentity.id).where(taken)).first() is not None:
        return None
    row = UserIdentity(id=uuid.uuid4(), issuer=person.issuer, subject=person.subject, user_id=user.id)
    session.add(row)
    session.flush()
    note(session, "user.identity", None, person.issuer)
    return user


def _not_invited(person: Identity) -> NotInvited:
    account = f"the account {person.email}" if person.email else "this account, which has no verified e-mail address,"
    return NotInvited(
        f"{account} is no member of a team here",
        hint="ask who runs the service to make a user of exactly this address and to add it to your team",
    )
