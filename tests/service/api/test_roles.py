"""Every route, as every role, for the team's own things and for another team's: taken from the app's OpenAPI."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app import create_app
from cupilot.model_call import Call
from cupilot.people import Role, Scope
from cupilot.settings import Settings
from cupilot.steering import DirectiveKind
from cupilot.storage.model_tables import LlmCall
from cupilot.storage.pool_rows import remember
from cupilot.storage.tables import Directive, Job, Step, Team
from cupilot.storage.teams import create_api_key, ensure_team, ensure_user, set_role
from tests.service.api.role_matrix import CLUSTER_ADMIN, EXPERIMENT, MATRIX, OPEN, WEBHOOK, Line
from tests.service.api.world import World, evolved
from tests.unit.storage.references import entry as pool_entry

pytestmark = pytest.mark.service

ROLES = ("viewer", "member", "admin", CLUSTER_ADMIN)
DENIED = {"role_too_low", "cluster_admin_only"}
ALL = sorted(
    f"{method.upper()} {path}"
    for path, methods in create_app(Settings(database_url=SecretStr("postgresql+psycopg2://nowhere/none")))
    .openapi()["paths"]
    .items()
    for method in methods
)
ROUTES = [route for route in ALL if route in MATRIX]


class Things:
    """One of everything that a path can name, of one team. Each is made when it is asked for, and only for that."""

    def __init__(self, tenant: Tenant) -> None:
        self._world = tenant.world
        self._team = tenant.id
        self._http = tenant.http["admin"]
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        makers: dict[str, Callable[[Session], Any]] = {
            "job": self._job,
            "candidate": lambda _: "0",
            "webhook": lambda _: self._webhook(),
            "entry": self._entry,
            "delivery": lambda _: self._posted(f"/v1/webhooks/{self['webhook']}/ping", None),
            "step": self._step,
            "call": self._call,
            "form": lambda _: "kernelbench",
            "table": lambda _: "arms",
            "figure": lambda _: "convergence",
            "directive": self._directive,
            "team": lambda session: session.get_one(Team, self._team).name,
            "user": self._user,
            "key": self._key,
            "experiment": lambda _: self._posted("/v1/experiments", EXPERIMENT),
            "problem": lambda session: session.get_one(Job, uuid.UUID(self["job"])).problem_id,
        }
        if name not in self._known:
            assert name in makers, f"test_roles.Things does not know what {{{name}}} in a path stands for"
            with self._world.database.transaction() as session:
                self._known[name] = str(makers[name](session))
        return self._known[name]

    def _posted(self, path: str, body: Any) -> str:
        """The id of what the team's admin makes over REST."""
        response = self._http.post(path, json=body)
        assert response.status_code < 300, response.text
        return str(response.json()["id"])

    def _directive(self, session: Session) -> uuid.UUID:
        job = uuid.UUID(self["job"])
        row = Directive(id=uuid.uuid4(), job_id=job, kind=DirectiveKind.BAN, technique="simd", author="test")
        session.add(row)
        return row.id

    def _user(self, session: Session) -> str:
        user = ensure_user(session, f"member-{uuid.uuid4().hex[:12]}")
        set_role(session, session.get_one(Team, self._team), user, Role.MEMBER)
        return user.name

    def _key(self, session: Session) -> uuid.UUID:
        key, _ = create_api_key(session, session.get_one(Team, self._team), uuid.uuid4().hex)
        return key.id

    def _webhook(self) -> str:
        """A team has few of them, so the ones of earlier requests go first."""
        for one in self._http.get("/v1/webhooks").json()["items"]:
            self._http.delete(f"/v1/webhooks/{one['id']}")
        return self._posted("/v1/webhooks", WEBHOOK)

    def _step(self, session: Session) -> uuid.UUID:
        return session.scalars(select(Step.id).where(Step.job_id == uuid.UUID(self["job"]))).first()

    def _call(self, session: Session) -> uuid.UUID:
        job = uuid.UUID(self["job"])
        step = session.scalars(select(Step.id).where(Step.job_id == job)).first()
        row = LlmCall(
            id=uuid.uuid4(),
            team_id=self._team,
            job_id=job,
            step_id=step,
            role="translator",
            purpose="translate",
            model="test",
            request=Call(
                role="translator",
                purpose="translate",
                model="test",
                messages=(),
                prompt_hash="0",
                parameters={},
                worst_cost_usd=0.0,
            ).model_dump(mode="json"),
            request_hash="0" * 64,
        )
        session.add(row)
        return row.id

    def _entry(self, session: Session) -> uuid.UUID:
        identity = uuid.uuid4()
        remember(session, pool_entry("softmax", str(identity), team=str(self._team)))
        return identity

    def _job(self, session: Session) -> uuid.UUID:
        return evolved(session, self._team).id


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
    response = ask(world.http(), route, Things(us))
    if MATRIX[route].role == OPEN:
        assert response.status_code in (200, 503), response.text  # nothing but Postgres runs here
        return
    assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("route", [route for route in ROUTES if MATRIX[route].role != OPEN])
def test_a_role_that_is_too_small_is_refused_and_one_that_suffices_is_not(route: str, us: Tenant) -> None:
    for role in ROLES:
        things = Things(us)  # one request may use up what the next one needs
        response = ask(us.http[role], route, things)
        if ROLES.index(role) < ROLES.index(MATRIX[route].role):
            assert (response.status_code, response.json()["error"]["code"] in DENIED) == (403, True), (role, response)
        else:
            assert response.status_code < 400 or response.status_code == 409, (role, response.status_code)


@pytest.mark.parametrize("route", [route for route in ROUTES if MATRIX[route].role != OPEN])
def test_a_key_does_no_more_than_its_scope(route: str, us: Tenant) -> None:
    """The user is an admin of the team; the key was given for less."""
    for scope, role in (("read", "viewer"), ("submit", "member")):
        response = ask(us.http[f"scope:{scope}"], route, Things(us))
        needed = MATRIX[route].role
        if needed == CLUSTER_ADMIN:
            assert response.status_code == 403, response.text
        elif ROLES.index(role) < ROLES.index(needed):
            assert (response.status_code, response.json()["error"]["code"]) == (403, "scope_too_narrow")
        else:
            assert response.status_code < 400 or response.status_code == 409, response.status_code


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if "{" in route and MATRIX[route].role != OPEN and not MATRIX[route].shared]
)
def test_what_belongs_to_another_team_does_not_exist(route: str, us: Tenant, strangers: Tenant) -> None:
    for role in ("viewer", "member", "admin"):
        response = ask(strangers.http[role], route, Things(us))
        if MATRIX[route].role == CLUSTER_ADMIN or ROLES.index(role) < ROLES.index(MATRIX[route].role):
            # The role in its own team is too small; that says nothing about the other team.
            assert response.status_code in (403, 404), response.text
        else:
            assert response.status_code == 404, (role, response.status_code)
            assert response.json()["error"]["code"] != "route_not_found"


def ask(http: httpx.Client, route: str, things: Things) -> httpx.Response:
    """Send the request of a route's line, with the things' ids in the places of their names."""
    method, path = route.split(" ")
    line: Line = MATRIX[route]
    target = "&".join(part for part in (filled(line.query, things),) if part)
    body = None if line.body is None else json.loads(filled(json.dumps(line.body), things))
    url = filled(path, things) + (f"?{target}" if target else "")
    with http.stream(method, url, json=body) as response:
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            response.read()  # a stream of events has no end
        return response


def filled(text: str, things: Things) -> str:
    """``{name}`` replaced by what it stands for; ``{new}`` is a name that nothing has yet."""
    names: Iterator[str] = (match[1] for match in re.finditer(r"\{([a-z_]+)\}", text))
    for name in set(names):
        text = text.replace(f"{{{name}}}", f"new-{uuid.uuid4().hex[:8]}" if name == "new" else things[name])
    return text
