"""Rights: roles in a team, scopes of keys, and the caller of a request. Pure values; decides no request.

What a caller may do is the smaller of two things: the role that its user has in the key's team, and the scope that the
key was given. A cluster admin is an admin of every team, and alone may make teams and users.
"""

from __future__ import annotations

from uuid import UUID

from cupilot.domain.errors import CupilotError
from cupilot.domain.value import Value, Vocabulary


class Role(Vocabulary):
    """Role of a user in a team; each may do all that the ones before it may."""

    VIEWER = "viewer"
    """Reads everything of the team."""
    MEMBER = "member"
    """Submits and steers jobs."""
    ADMIN = "admin"
    """Decides who is in the team, and over its keys."""

    @property
    def rank(self) -> int:
        """Higher may do more."""
        return list(Role).index(self)


class Scope(Vocabulary):
    """Limit of a key's use, whatever its user's role is."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"

    @property
    def role(self) -> Role:
        """The role that a key of this scope can act in at most."""
        return {Scope.READ: Role.VIEWER, Scope.SUBMIT: Role.MEMBER, Scope.ADMIN: Role.ADMIN}[self]


class Forbidden(CupilotError):
    """The caller is known, and may not do this."""

    code = "forbidden"
    status = 403


class RoleTooLow(Forbidden):
    """The caller's role in the team does not allow this."""

    code = "role_too_low"


class ScopeTooNarrow(Forbidden):
    """The caller's role would allow this; the key that it used does not."""

    code = "scope_too_narrow"


class KeyOutlivesMaker(Forbidden):
    """A key that expires may make only keys that do so no later."""

    code = "key_outlives_maker"


class ClusterAdminOnly(Forbidden):
    """Only those who run the service may do this."""

    code = "cluster_admin_only"


class Identity(Value):
    """Whom an identity provider vouches for."""

    issuer: str
    subject: str
    """Names the person at the issuer for ever; addresses may be given to others."""
    email: str | None = None
    """Only an address that the issuer has verified."""


class Caller(Value):
    """Caller of a request: a key, its user, and the team that the key is for."""

    key_id: UUID
    key_prefix: str
    """The start of the key, by which people know it."""
    team_id: UUID
    user_id: UUID
    user: str
    """The user's name."""
    team: str
    """The team's name."""
    role: Role
    """The user's role in the team; a cluster admin's is ``admin`` everywhere."""
    scope: Scope
    cluster_admin: bool = False

    @property
    def acts_as(self) -> Role:
        """The role that this request has: the user's, cut to the key's scope."""
        return min(self.role, self.scope.role, key=lambda role: role.rank)

    def needs(self, role: Role) -> None:
        """Raise :class:`Forbidden` unless the request has at least this role in the key's team."""
        if self.role.rank < role.rank:
            raise RoleTooLow(
                f"this needs the role {role.value}, and {self.user} is {self.role.value} in team {self.team}",
                hint="ask an admin of the team",
            )
        self._needs_scope(role)

    def needs_cluster_admin(self) -> None:
        """Raise :class:`Forbidden` unless the request comes from a cluster admin with a key of full scope."""
        if not self.cluster_admin:
            raise ClusterAdminOnly(f"this needs a cluster admin, and {self.user} is not one")
        self._needs_scope(Role.ADMIN)

    def needs_writing_key(self) -> None:
        """Raise :class:`ScopeTooNarrow` for a key that only reads, whatever role its user has."""
        self._needs_scope(Scope.SUBMIT.role)

    @property
    def rules(self) -> bool:
        """True if the request may do what only cluster admins may."""
        return self.cluster_admin and self.acts_as is Role.ADMIN

    def _needs_scope(self, role: Role) -> None:
        if self.scope.role.rank < role.rank:
            scope = next(scope for scope in Scope if scope.role.rank >= role.rank)
            raise ScopeTooNarrow(
                f"this key's scope is {self.scope.value}, which does not cover what the role {role.value} may do",
                hint="an admin can make a key with a wider scope: "
                f"cupilot key create NAME --user {self.user} --scope {scope.value}",
            )
