"""Invite people to a team: an admin makes an invitation, whoever is given its secret joins with a key of their own.

Nobody is named, so that it cannot be learnt who is known to the service, and nobody joins without their doing. As of a
key, only the secret's SHA-256 is kept. An invitation is used once, and ends after some days.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, NotFound
from cupilot.domain.people import Caller, Role
from cupilot.storage.db.changes import note
from cupilot.storage.db.tables.people import Invitation, Membership, Team, User
from cupilot.storage.people.teams import set_role

INVITATION_MARK = "cpi"


def invite(session: Session, caller: Caller, team: Team, role: Role, lifetime: timedelta) -> tuple[Invitation, str]:
    """Make an invitation to the team, and its secret, which cannot be had again."""
    secret = f"{INVITATION_MARK}_{secrets.token_urlsafe(32)}"
    invitation = Invitation(
        team_id=team.id,
        role=role,
        hash=_hash(secret),
        author=caller.user,
        expires_at=func.now() + lifetime,
    )
    session.add(invitation)
    session.flush()
    session.refresh(invitation)
    note(session, "invitation.role", None, role)
    return invitation, secret


def accept(session: Session, caller: Caller, secret: str) -> tuple[Team, User, Membership]:
    """Make the caller a member of the team that the secret invites to; a role that they have there is not made smaller.

    Raises :class:`NotFound` for a secret that is unknown, used or expired, and :class:`Conflict` for a service account.
    """
    caller.needs_writing_key()
    query = select(Invitation).where(Invitation.hash == _hash(secret)).with_for_update()
    open_ones = query.where(Invitation.used_at.is_(None), Invitation.expires_at > func.now())
    invitation = session.scalars(open_ones).one_or_none()
    if invitation is None:
        raise NotFound(
            "the invitation is unknown, was used, or has expired",
            hint="ask an admin of the team for another one: cupilot team invite",
            where="secret",
        )
    user, team = session.get_one(User, caller.user_id), session.get_one(Team, invitation.team_id)
    if user.team_id is not None:
        raise Conflict(f"{user.name} is a service account, which belongs to one team", hint="use a key of your own")
    invitation.used_at, invitation.used_by = func.now(), user.name
    membership = session.get(Membership, (team.id, user.id))
    if membership is None or membership.role.rank < invitation.role.rank:
        membership = set_role(session, team, user, invitation.role)
    return team, user, membership


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
