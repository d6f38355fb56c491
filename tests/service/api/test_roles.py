"""Every route, as every role, for the team's own things and for another team's: taken from the app's OpenAPI."""

from __future__ import annotations

import uuid

import httpx
import pytest
from sqlalchemy.orm import Session

from cupilot.domain.people import Role, Scope
from cupilot.storage.db.tables.people import Team
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from tests.service.api.role_matrix import CLUSTER_ADMIN, MATRIX, OPEN
from tests.service.api.things import Things
from tests.service.api.world import World, documentation

pytestmark = pytest.mark.service

ROLES = ("viewer", "member", "admin", CLUSTER_ADMIN)
DENIED = {"role_too_low", "cluster_admin_only"}
ALL = sorted(f"{method.upper()} {path}" for path, methods in documentation()["paths"].items() for method in methods)
ROUTES = [route for route in ALL if route in MATRIX]


class Tenant:
    """A team with a user of every role."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.name = f"team-{uuid.uuid4().hex[:12]}"
        self.http: dict[str, httpx.Client] = {}
        with world.database.transaction() as session:
            team = ensure_team(session, self.name)
            self.id = team.id
            for role in ROLES:
                self.http[role] = world.http(self._key(session, team, role))
            for scope in Scope:
                user = ensure_user(session, f"{self.name}-admin")
                _, secret = create_api_key(session, team, scope.value, user=user, scope=scope)
                self.http[f"scope:{scope.value}"] = world.http(secret)

    def _key(self, session: Session, team: Team, role: str) -> str:
        user = ensure_user(session, f"{self.name}-{role}")
        user.cluster_admin = role == CLUSTER_ADMIN
        if not user.cluster_admin:
            set_role(session, team, user, Role(role))
        _, secret = create_api_key(session, team, role, user=user)
        return secret


def things_of(tenant: Tenant, route: str) -> Things:
    """New ones, such as the route needs them."""
    return Things(tenant.world, tenant.id, tenant.http["admin"], MATRIX[route].job)


def used(things: Things, tenant: Tenant, route: str) -> Things:
    """Return what the next request of a route needs, after one that succeeded: reading uses nothing up."""
    return things if route.startswith("GET ") else things_of(tenant, route)


@pytest.fixture(scope="module")
def us(world: World) -> Tenant:
    return Tenant(world)


@pytest.fixture(scope="module")
def strangers(world: World) -> Tenant:
    return Tenant(world)


def test_every_route_has_a_line_and_every_line_a_route() -> None:
    assert sorted(MATRIX) == ALL, "give each route a line in tests/service/api/role_matrix.py"


@pytest.mark.parametrize("route", ROUTES)
def test_without_a_key_only_what_is_open_answers(route: str, world: World, us: Tenant) -> None:
    response = ask(world.http(), route, things_of(us, route))
    if MATRIX[route].role == OPEN:
        assert response.status_code in (200, 503), response.text  # nothing but Postgres runs here
        return
    assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("route", [route for route in ROUTES if MATRIX[route].role != OPEN])
def test_a_role_that_is_too_small_is_refused_and_one_that_suffices_is_not(route: str, us: Tenant) -> None:
    things = things_of(us, route)
    for role in ROLES:
        response = ask(us.http[role], route, things)
        if ROLES.index(role) < ROLES.index(MATRIX[route].role):
            assert (response.status_code, response.json()["error"]["code"] in DENIED) == (403, True), (role, response)
        else:
            assert response.status_code < 400, (role, response.text)
            things = used(things, us, route)


@pytest.mark.parametrize("route", [route for route in ROUTES if MATRIX[route].role != OPEN])
def test_a_key_does_no_more_than_its_scope(route: str, us: Tenant) -> None:
    """The user is an admin of the team; the key was given for less."""
    things = things_of(us, route)
    for scope, role in (("read", "viewer"), ("submit", "member")):
        response = ask(us.http[f"scope:{scope}"], route, things)
        needed = MATRIX[route].role
        if needed == CLUSTER_ADMIN:
            assert response.status_code == 403, response.text
        elif ROLES.index(role) < ROLES.index(needed):
            assert (response.status_code, response.json()["error"]["code"]) == (403, "scope_too_narrow")
        else:
            assert response.status_code < 400, response.text
            things = used(things, us, route)


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if "{" in route and MATRIX[route].role != OPEN and not MATRIX[route].shared]
)
def test_what_belongs_to_another_team_does_not_exist(route: str, us: Tenant, strangers: Tenant) -> None:
    things = things_of(us, route)  # a refused request uses nothing up
    for role in ("viewer", "member", "admin"):
        response = ask(strangers.http[role], route, things)
        if MATRIX[route].role == CLUSTER_ADMIN or ROLES.index(role) < ROLES.index(MATRIX[route].role):
            # The role in its own team is too small; that says nothing about the other team.
            assert response.status_code in (403, 404), response.text
        else:
            assert response.status_code == 404, (role, response.status_code)
            assert response.json()["error"]["code"] != "route_not_found"


def ask(http: httpx.Client, route: str, things: Things) -> httpx.Response:
    """Send the request of a route's line, with the things' ids in the places of their names."""
    method, path = route.split(" ")
    asked = things.asked(route)
    with http.stream(method, path.format(**asked.path), params=asked.query, json=asked.body) as response:
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            response.read()  # a stream of events has no end
        return response
