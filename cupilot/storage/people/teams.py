"""Teams, their users, and API keys. A key is shown once; only its SHA-256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from cupilot.domain.people import Caller, Role, Scope
from cupilot.storage.db.changes import note
from cupilot.storage.db.engine import rows
from cupilot.storage.db.tables.people import ApiKey, Membership, Team, User

KEY_MARK = "cpk"
USE_RESOLUTION = timedelta(minutes=1)
"""Shortest interval between writes of ``last_used_at``: a key in use would otherwise cost a write a request."""

_FORM = re.compile(rf"({KEY_MARK}_[0-9a-f]{{8}})_.{{32}}", re.DOTALL)
_STALE = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - USE_RESOLUTION)
_KEY = (
    select(
        ApiKey.id.label("key_id"),
        ApiKey.hash,
        ApiKey.scope,
        Team.id.label("team_id"),
        Team.name.label("team"),
        ApiKey.prefix,
        User.id.label("user_id"),
        User.name.label("user"),
        User.cluster_admin,
        Membership.role,
        _STALE.label("stale"),
    )
    .select_from(ApiKey)
    .join(User, User.id == ApiKey.user_id)
    .join(Team, Team.id == ApiKey.team_id)
    .outerjoin(Membership, (Membership.team_id == Team.id) & (Membership.user_id == User.id))
    .where(
        ApiKey.prefix == bindparam("prefix"),
        ApiKey.revoked_at.is_(None),
        or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()),
        User.disabled_at.is_(None),
    )
)
"""A key with its caller. Made once, since every request asks it and making it takes as long as its answer."""


def ensure_team(session: Session, name: str) -> Team:
    """Return the team of this name, made where there is none."""
    session.execute(insert(Team).values(id=uuid.uuid4(), name=name).on_conflict_do_nothing())
    return session.scalars(select(Team).where(Team.name == name)).one()


def ensure_user(session: Session, name: str, *, team: Team | None = None) -> User:
    """Return the person of this name, or the service account of the team; made where there is none."""
    values = {"id": uuid.uuid4(), "name": name, "team_id": team.id if team else None}
    session.execute(insert(User).values(values).on_conflict_do_nothing())
    home = User.team_id.is_(None) if team is None else User.team_id == team.id
    return session.scalars(select(User).where(User.name == name, home)).one()


def ensure_account(session: Session, name: str, team: Team) -> User:
    """Return the service account of the team, made where there is none; one that was removed is enabled again.

    The keys that it had before are revoked then: whoever still has one must not come in by it.
    """
    account = ensure_user(session, name, team=team)
    session.refresh(account, with_for_update={"key_share": True})  # of two at once, one enables it
    if account.disabled_at is not None:
        account.disabled_at = None
        for key in session.scalars(select(ApiKey).where(ApiKey.user_id == account.id, ApiKey.revoked_at.is_(None))):
            key.revoked_at = func.now()
        session.flush()
    return account


def set_role(session: Session, team: Team, user: User, role: Role) -> Membership:
    """Make the user a member of the team in this role, whatever it was before."""
    key = (Membership.team_id == team.id) & (Membership.user_id == user.id)
    note(session, "member.role", session.scalar(select(Membership.role).where(key)), role)
    values = {"team_id": team.id, "user_id": user.id, "role": role}
    session.execute(
        insert(Membership)
        .values(values)
        .on_conflict_do_update(index_elements=["team_id", "user_id"], set_={"role": role})
    )
    return session.get_one(Membership, (team.id, user.id), populate_existing=True)


def create_api_key(
    session: Session,
    team: Team,
    name: str,
    *,
    user: User | None = None,
    scope: Scope = Scope.ADMIN,
    lifetime: timedelta | None = None,
) -> tuple[ApiKey, str]:
    """Make a new key for a team, and its secret, which cannot be had again; without a ``lifetime`` it does not expire.

    Without a ``user`` it is that of a service account of the key's name, which is made an admin of the team.
    """
    prefix = f"{KEY_MARK}_{secrets.token_hex(4)}"
    secret = f"{prefix}_{secrets.token_urlsafe(32)}"
    key = ApiKey(
        team_id=team.id,
        user_id=(user or _own_account(session, team, name)).id,
        name=name,
        prefix=prefix,
        hash=_hash(secret),
        scope=scope,
        expires_at=None if lifetime is None else func.now() + lifetime,
    )
    session.add(key)
    session.flush()
    return key, secret


def adopt_api_key(session: Session, team: Team, name: str, secret: str, *, user: User | None = None) -> ApiKey:
    """Make a secret that exists already (in a file, in a secret store) a key of the team; repeating it is harmless."""
    prefix = prefix_of(secret)
    if prefix is None:
        raise ValueError(f"not an API key: it must look like {KEY_MARK}_<8 hex digits>_<32 or more characters>")
    owner = user or _own_account(session, team, name)
    values = {"team_id": team.id, "user_id": owner.id, "name": name, "prefix": prefix, "hash": _hash(secret)}
    session.execute(insert(ApiKey).values({"id": uuid.uuid4(), **values}).on_conflict_do_nothing())
    return session.scalars(select(ApiKey).where(ApiKey.prefix == prefix, ApiKey.hash == _hash(secret))).one()


def authenticate(session: Session, secret: str) -> ApiKey | None:
    """Return the key that this secret is, unless it is unknown, revoked or expired, or its user is disabled."""
    row = _valid(session, secret)
    return None if row is None else session.get_one(ApiKey, row.key_id)


def identify(session: Session, secret: str) -> Caller | None:
    """Return whose secret it is; None where :func:`authenticate` knows no such key, or its user has left the team."""
    row = _valid(session, secret)
    if row is None:
        return None
    role = Role.ADMIN if row.cluster_admin else row.role
    if role is None:
        return None
    return Caller(
        key_id=row.key_id,
        key_prefix=row.prefix,
        team_id=row.team_id,
        user_id=row.user_id,
        user=row.user,
        team=row.team,
        role=role,
        scope=row.scope,
        cluster_admin=row.cluster_admin,
    )


def _valid(session: Session, secret: str) -> Any:
    """Return what identifies a valid key's caller, and the user's role, in one query: every request asks it."""
    prefix = prefix_of(secret)
    if prefix is None:
        return None
    row = rows(session, _KEY, {"prefix": prefix}).one_or_none()
    if row is None or not hmac.compare_digest(row.hash, _hash(secret)):
        return None
    if row.stale:
        session.execute(
            update(ApiKey)
            .where(ApiKey.id == row.key_id, _STALE)
            .values(last_used_at=func.now())
            .execution_options(synchronize_session=False)
        )
    return row


def prefix_of(secret: str) -> str | None:
    """Return the start by which a secret's key is found; None for what has not the form of a key."""
    form = _FORM.match(secret)
    return form[1] if form else None


def _own_account(session: Session, team: Team, name: str) -> User:
    account = ensure_account(session, name, team)
    set_role(session, team, account, Role.ADMIN)
    return account


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
