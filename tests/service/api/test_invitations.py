"""People join teams by invitation; what a key of an admin learns about names, and what the last key of all is worth."""

from __future__ import annotations

import uuid
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import func, update

from cupilot.domain.people import Role, Scope
from cupilot.storage.db.tables.people import ApiKey, Invitation, User
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.teams import create_api_key, ensure_user, set_role
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service


class Person:
    """A user with a role in a team and a key for it."""

    def __init__(self, world: World, team: Team, role: Role, scope: Scope = Scope.ADMIN) -> None:
        with world.database.transaction() as session:
            row = session.get_one(TeamRow, team.id)
            self.team = row.name
            user = ensure_user(session, f"{role.value}-{uuid.uuid4().hex[:12]}")
            self.name = user.name
            set_role(session, row, user, role)
            _, secret = create_api_key(session, row, "test", user=user, scope=scope)
        self.http: httpx.Client = world.http(secret)

    def invites(self, **fields: object) -> httpx.Response:
        return self.http.post(f"/v1/teams/{self.team}/invitations", json=fields)

    def accepts(self, secret: str) -> httpx.Response:
        return self.http.post("/v1/invitations/accept", json={"secret": secret})


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.fixture
def admin(world: World) -> Person:
    return Person(world, world.team(), Role.ADMIN)


@pytest.fixture
def stranger(world: World) -> Person:
    return Person(world, world.team(), Role.MEMBER)


def test_whoever_accepts_an_invitation_is_a_member_and_it_is_used_up(admin: Person, stranger: Person) -> None:
    made = admin.invites(role="viewer").json()
    joined = stranger.accepts(made["secret"])
    assert joined.json() == {"team": admin.team, "user": stranger.name, "role": "viewer"}
    members = {item["name"]: item["role"] for item in admin.http.get(f"/v1/teams/{admin.team}/members").json()["items"]}
    assert members[stranger.name] == "viewer"
    assert error(stranger.accepts(made["secret"])) == (404, "not_found")


def test_an_invitation_makes_no_role_smaller(admin: Person) -> None:
    secret = admin.invites(role="viewer").json()["secret"]
    assert admin.accepts(secret).json()["role"] == "admin"


def test_an_expired_invitation_is_none(admin: Person, stranger: Person, world: World) -> None:
    made = admin.invites().json()
    with world.database.transaction() as session:
        past = func.now() - timedelta(seconds=1)
        session.execute(update(Invitation).where(Invitation.id == uuid.UUID(made["id"])).values(expires_at=past))
    assert error(stranger.accepts(made["secret"])) == (404, "not_found")


def test_a_service_account_joins_no_other_team(admin: Person, team: Team) -> None:
    secret = admin.invites().json()["secret"]
    refused = team.http.post("/v1/invitations/accept", json={"secret": secret})
    assert error(refused) == (409, "conflict")


def test_known_and_unknown_names_are_answered_alike(admin: Person, stranger: Person) -> None:
    """Whoever may add people must not learn by it who is known to the service, nor add them without their doing."""
    answers = []
    for name in (stranger.name, f"nobody-{uuid.uuid4().hex[:12]}"):
        response = admin.http.put(f"/v1/teams/{admin.team}/members/{name}", json={"role": "member"})
        told = response.json()["error"]
        answers.append((response.status_code, told["code"], told["message"].replace(name, "NAME"), told["hint"]))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_a_key_that_reads_neither_makes_nor_revokes_keys(world: World) -> None:
    team = world.team()
    reader = Person(world, team, Role.ADMIN, Scope.READ)
    assert error(reader.http.post("/v1/keys", json={"name": "mine", "scope": "read"})) == (403, "scope_too_narrow")
    (own,) = [key for key in reader.http.get("/v1/keys").json()["items"] if key["user"] == reader.name]
    assert error(reader.http.delete(f"/v1/keys/{own['id']}")) == (403, "scope_too_narrow")
    assert reader.http.get("/v1/me").status_code == 200


def test_the_last_key_of_a_cluster_admin_is_not_revoked(world: World) -> None:
    one, other = world.cluster_admin(), world.cluster_admin()
    keep = {one.id, other.id}
    with world.database.transaction() as session:  # other tests' admins are none meanwhile
        others = update(User).where(User.cluster_admin, User.id.not_in(_users(session, keep)))
        session.execute(others.values(cluster_admin=False))
    reader = one.http.post("/v1/keys", json={"name": "a reader", "scope": "read"})
    assert reader.status_code == 201
    keys = {team.id: team.http.get("/v1/keys").json()["items"] for team in (one, other)}
    (of_other,) = keys[other.id]
    (of_one,) = [key for key in keys[one.id] if key["scope"] == "admin"]
    assert one.http.delete(f"/v1/keys/{of_other['id']}").status_code == 200
    assert error(one.http.delete(f"/v1/keys/{of_one['id']}")) == (409, "last_admin")
    assert one.http.get("/v1/me").status_code == 200


def _users(session: object, teams: set[uuid.UUID]) -> list[uuid.UUID]:
    from sqlalchemy import select

    return list(session.scalars(select(ApiKey.user_id).where(ApiKey.team_id.in_(teams))))  # type: ignore[attr-defined]
