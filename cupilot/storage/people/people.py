"""Read and change members and their roles, for admins. Keys are made in :mod:`cupilot.storage.people.teams`.

Whoever is in no team of theirs is invited: :mod:`cupilot.storage.people.invitations`.

A team is found by its name. What the caller may not see does not exist: NotFound.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select, true, tuple_
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict, NotFound
from cupilot.domain.people import Caller, ClusterAdminOnly, KeyOutlivesMaker, Role, Scope
from cupilot.domain.quota import Quota
from cupilot.storage.db.changes import note
from cupilot.storage.db.engine import notify
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.db.tables.people import ApiKey, Membership, Team, User
from cupilot.storage.people.identities import forget_identities
from cupilot.storage.people.teams import create_api_key, ensure_account, ensure_team, ensure_user, set_role


class LastAdmin(Conflict):
    """The change would leave no admin who could undo it."""

    code = "last_admin"


def team_for(session: Session, caller: Caller, name: str) -> Team:
    """Return the team of this name, if the caller may know it: its own, or any for a cluster admin."""
    team = session.scalars(select(Team).where(Team.name == name)).one_or_none()
    if team is None or not (team.id == caller.team_id or caller.rules):
        raise NotFound(f"no team {name}")
    return team


def team_of_job(session: Session, caller: Caller, job_id: UUID) -> UUID:
    """Return the team as which the caller asks for a job: its own; for a cluster admin the one that has the job."""
    owner = session.scalar(select(Job.team_id).where(Job.id == job_id)) if caller.rules else None
    return owner or caller.team_id


def administered(session: Session, caller: Caller, name: str) -> Team:
    """Return the team of this name for its admin; raises :class:`cupilot.domain.people.Forbidden`."""
    team = team_for(session, caller, name)
    caller.needs(Role.ADMIN)
    return team


def teams_for(
    session: Session, caller: Caller, *, after: str | None = None, limit: int | None = None
) -> Sequence[Team]:
    """Return the teams that the caller may know, by name; those above ``after``, and one more than ``limit``."""
    query = select(Team).order_by(Team.name).limit(_one_more(limit))
    if not caller.rules:
        query = query.where(Team.id == caller.team_id)
    return session.scalars(query if after is None else query.where(Team.name > after)).all()


def make_team(session: Session, name: str, weight: float, quota: Quota) -> Team:
    """Make a new team; raises :class:`Conflict` where the name is taken."""
    if session.scalars(select(Team.id).where(Team.name == name)).first() is not None:
        raise Conflict(f"there is a team {name} already")
    note(session, "team.name", None, name)
    return change_team(session, ensure_team(session, name), weight, quota)


def change_team(session: Session, team: Team, weight: float | None, quota: Quota | None) -> Team:
    """Change a team's weight or quota; it takes effect at the scheduler's next look."""
    if weight is not None:
        team.weight = weight
    for name, value in dict(quota or {}).items():
        setattr(team, name, value)
    session.flush()
    notify(session)
    return team


def members_of(
    session: Session, team: Team, *, after: tuple[str, UUID] | None = None, limit: int | None = None
) -> Sequence[tuple[User, Membership]]:
    """Return everybody in the team, by name and id; those above ``after``, and one more than ``limit``."""
    query = (
        select(User, Membership)
        .join(Membership, Membership.user_id == User.id)
        .where(Membership.team_id == team.id)
        .order_by(User.name, User.id)
        .limit(_one_more(limit))
    )
    if after is not None:
        query = query.where(tuple_(User.name, User.id) > after)
    return [(user, membership) for user, membership in session.execute(query)]


def count_members(session: Session, team: Team) -> int:
    """Return the number of the team's members."""
    return session.execute(select(func.count()).where(Membership.team_id == team.id)).scalar_one()


def person(session: Session, name: str) -> User:
    """Return the person of this name; raises :class:`NotFound`."""
    user = session.scalars(select(User).where(User.name == name, User.team_id.is_(None))).one_or_none()
    if user is None:
        hint = f"a cluster admin can create the user: cupilot user create {name}"
        raise NotFound(f"no user {name}", hint=hint)
    return user


def member(session: Session, team: Team, name: str) -> tuple[User, Membership]:
    """Return somebody in the team by name, a service account before a person; raises :class:`NotFound`."""
    matches = [pair for pair in members_of(session, team) if pair[0].name == name]
    if not matches:
        raise NotFound(
            f"{name} is not a member of team {team.name}", hint=f"invite them: cupilot team invite {team.name}"
        )
    return min(matches, key=lambda pair: pair[0].team_id is None)


def put_member(session: Session, caller: Caller, team: Team, name: str, role: Role) -> tuple[User, Membership]:
    """Set the role of a member; for a cluster admin also of an existing user, who joins the team.

    Anybody else invites: whether a name outside the team is known is not told, and nobody is added without their doing.
    """
    try:
        user, _ = member(session, team, name)
    except NotFound:
        if not caller.rules:
            raise
        user = person(session, name)
    return user, set_role(session, team, user, role)


def remove_member(session: Session, team: Team, name: str) -> None:
    """Remove a member from the team; their keys for it stop working. A service account is disabled with it."""
    user, membership = member(session, team, name)
    if user.team_id is not None:
        user.disabled_at = func.now()
    session.delete(membership)
    session.flush()


def make_service_account(session: Session, team: Team, name: str, role: Role) -> tuple[User, Membership]:
    """Make a service account of the team, or one that was removed anew; raises :class:`Conflict` where the name is
    taken."""
    removed = User.disabled_at.is_not(None) & User.id.not_in(select(Membership.user_id))
    if session.scalars(select(User.id).where(User.name == name, User.team_id == team.id, ~removed)).first() is not None:
        raise Conflict(f"there is a service account {name} in team {team.name} already")
    note(session, "user.name", None, name)
    user = ensure_account(session, name, team)
    return user, set_role(session, team, user, role)


def make_person(session: Session, name: str, *, cluster_admin: bool) -> User:
    """Make a new person; raises :class:`Conflict` where the name is taken."""
    if session.scalars(select(User.id).where(User.name == name, User.team_id.is_(None))).first() is not None:
        raise Conflict(f"there is a user {name} already")
    note(session, "user.name", None, name)
    user = ensure_user(session, name)
    user.cluster_admin = cluster_admin
    session.flush()
    return user


def change_person(session: Session, user: User, *, cluster_admin: bool | None, disabled: bool | None) -> User:
    """Change a user's rights; raises :class:`LastAdmin` where no cluster admin would be left."""
    if user.cluster_admin and (cluster_admin is False or disabled):
        admins = select(User).where(User.cluster_admin, User.disabled_at.is_(None)).order_by(User.id)
        others = [admin for admin in session.scalars(admins.with_for_update()) if admin.id != user.id]
        if not others:
            raise LastAdmin(f"{user.name} is the last cluster admin")
    if cluster_admin is not None:
        user.cluster_admin = cluster_admin
    if disabled is not None:
        user.disabled_at = func.now() if disabled else None
    if disabled:
        forget_identities(session, user)
    session.flush()
    session.refresh(user)
    return user


def people(session: Session, *, after: str | None, limit: int) -> Sequence[User]:
    """Return persons by name, those above ``after``; one more than ``limit``, where there are more."""
    query = select(User).where(User.team_id.is_(None)).order_by(User.name).limit(limit + 1)
    return session.scalars(query.where(User.name > after) if after is not None else query).all()


def roles_of(session: Session, user: User) -> dict[str, Role]:
    """Return a user's roles, by team."""
    query = select(Team.name, Membership.role).join(Membership, Membership.team_id == Team.id)
    rows = session.execute(query.where(Membership.user_id == user.id).order_by(Team.name))
    return {row.name: row.role for row in rows}


def make_key(
    session: Session,
    caller: Caller,
    name: str,
    *,
    scope: Scope,
    lifetime: timedelta | None,
    shorten: bool,
    user: str | None,
    team: str | None,
) -> tuple[ApiKey, User, Team, str]:
    """Make a key for the caller, or by an admin for a member of the team; with its secret, which cannot be had again.

    A key gives no more than its maker's own, and for no longer: raises :class:`cupilot.domain.people.Forbidden`. With
    ``shorten`` one that would outlive it expires together with it instead.
    """
    caller.needs_writing_key()
    home = team_for(session, caller, team or caller.team)
    owner = session.get_one(User, caller.user_id)
    if user is not None and user != owner.name:
        caller.needs(Role.ADMIN)
        owner, _ = member(session, home, user)
    if owner.cluster_admin and owner.id != caller.user_id and not caller.rules:
        raise ClusterAdminOnly("only a cluster admin may make a key for a cluster admin")
    caller.needs(scope.role)
    left = _lifetime_left(session, caller)
    if left is not None and (lifetime is None or lifetime > left):
        if not shorten:
            raise KeyOutlivesMaker(
                f"your key expires in {left / timedelta(days=1):.2f} days and cannot make a key that expires later",
                hint="leave expires_days (--days) out to get a key that expires with yours, or ask the service's "
                "operators for a longer one (python -m cupilot.storage.keys)",
                where="expires_days",
            )
        lifetime = left
    key, secret = create_api_key(session, home, name, user=owner, scope=scope, lifetime=lifetime)
    session.refresh(key)
    return key, owner, home, secret


def _lifetime_left(session: Session, caller: Caller) -> timedelta | None:
    """Return the lifetime left to the caller's key; None where it does not expire. A cluster admin's key counts too:
    whoever finds one of short life must not make a lasting one from it."""
    expires, now = session.execute(select(ApiKey.expires_at, func.now()).where(ApiKey.id == caller.key_id)).one()
    return None if expires is None else expires - now


def keys_for(
    session: Session,
    caller: Caller,
    team: str | None = None,
    *,
    before: tuple[datetime, UUID] | None = None,
    limit: int | None = None,
) -> Sequence[tuple[ApiKey, User, Team]]:
    """Return the caller's keys for its team; all of the team's for an admin; the newest first, one more than ``limit``.

    ``team`` is another one, for cluster admins; NotFound for anybody else.
    """
    home = team_for(session, caller, team or caller.team)
    which = ApiKey.team_id == home.id
    if caller.acts_as is not Role.ADMIN:
        which &= ApiKey.user_id == caller.user_id
    if before is not None:
        which &= tuple_(ApiKey.created_at, ApiKey.id) < before
    return _keys(session, which, limit)


def revoke_key(session: Session, caller: Caller, reference: str) -> tuple[ApiKey, User, Team]:
    """Refuse a key of the team, for a cluster admin of any team, from now on, by id or prefix. Repeating is harmless.

    Raises :class:`NotFound`, :class:`cupilot.domain.people.Forbidden` for another user's key where the caller is no
    admin and for a caller whose key only reads, and :class:`LastAdmin` for the last key of full scope that lets a
    cluster admin in.
    """
    caller.needs_writing_key()
    visible = true() if caller.rules else ApiKey.team_id == caller.team_id
    for key, user, team in _keys(session, visible):
        if reference in (str(key.id), key.prefix):
            if user.id != caller.user_id:
                caller.needs(Role.ADMIN)
            if key.revoked_at is None:
                if user.cluster_admin and key.scope is Scope.ADMIN:
                    _check_others_remain(session, key)
                key.revoked_at = func.now()
                session.flush()
                session.refresh(key)
            return key, user, team
    raise NotFound(f"no key {reference}")


def _check_others_remain(session: Session, key: ApiKey) -> None:
    """Raise :class:`LastAdmin` unless another key lets a cluster admin in; none is revoked meanwhile."""
    query = (
        select(ApiKey.id)
        .join(User, User.id == ApiKey.user_id)
        .where(User.cluster_admin, User.disabled_at.is_(None), ApiKey.scope == Scope.ADMIN)
        .where(ApiKey.revoked_at.is_(None), or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()))
        .order_by(ApiKey.id)
    )
    if set(session.scalars(query.with_for_update(of=ApiKey))) <= {key.id}:
        raise LastAdmin(
            f"{key.prefix} is the last key of a cluster admin",
            hint="make another one first: cupilot key create NAME --scope admin",
        )


def _keys(
    session: Session, which: ColumnElement[bool], limit: int | None = None
) -> Sequence[tuple[ApiKey, User, Team]]:
    query = (
        select(ApiKey, User, Team)
        .select_from(ApiKey)
        .join(User, User.id == ApiKey.user_id)
        .join(Team, Team.id == ApiKey.team_id)
        .where(which)
        .order_by(ApiKey.created_at.desc(), ApiKey.id.desc())
        .limit(_one_more(limit))
    )
    return [(key, user, team) for key, user, team in session.execute(query)]


def _one_more(limit: int | None) -> int | None:
    """Return one more than a page, to learn whether another one follows; None for everything."""
    return None if limit is None else limit + 1
