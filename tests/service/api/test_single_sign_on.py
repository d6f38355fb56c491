"""Sign in through an identity provider: who gets in, and which answers of the provider open nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey
from pydantic import SecretStr, ValidationError
from sqlalchemy import select

from api.app import create_app
from api.pages.visits import COOKIE
from cupilot.domain.people import Role
from cupilot.settings import Settings
from cupilot.storage.db.tables.people import ApiKey, AuditEntry, User
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.people import change_person
from cupilot.storage.people.teams import ensure_team, ensure_user, set_role
from tests.service.api.identity_provider import CLIENT, SECRET, IdentityProvider, serving
from tests.service.api.world import World, live

pytestmark = pytest.mark.service


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with serving() as provider:
        yield provider


@pytest.fixture
def world(database_url: str, provider: IdentityProvider) -> Iterator[World]:
    config = Settings(
        database_url=SecretStr(database_url),
        oidc_issuer=provider.url,
        oidc_client_id=CLIENT,
        oidc_client_secret=SecretStr(SECRET),
    )
    app = create_app(config)
    with live(app) as url:
        world = World(app.state.database, url)
        yield world
        world.close()
    world.database.close()


@pytest.fixture
def browser(world: World) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=world.url, timeout=60) as browser:
        yield browser


def invited(world: World, *roles: Role, cluster_admin: bool = False) -> str:
    """An address of a user who is in as many teams as roles are given; the first team's name is the least."""
    mark = uuid.uuid4().hex
    with world.database.transaction() as session:
        user = ensure_user(session, f"ann-{mark}@example.org")
        user.cluster_admin = cluster_admin
        for number, role in enumerate(roles):
            set_role(session, ensure_team(session, f"team-{mark}-{number}"), user, role)
        return user.name


def person(email: str, verified: Any = True, subject: str | None = None) -> dict[str, Any]:
    return {"sub": subject or uuid.uuid4().hex, "email": email, "email_verified": verified}


def leave(browser: httpx.Client, path: str = "/ui/sso") -> str:
    """To the provider and through it: the address that it sends the browser back to."""
    start = browser.get(path)
    assert start.status_code == 303, start.text
    assert all(part in start.headers["Set-Cookie"] for part in ("HttpOnly", "SameSite=lax", "Path=/ui/sso"))
    return str(httpx.get(start.headers["Location"]).headers["Location"])


def sign_in(browser: httpx.Client, path: str = "/ui/sso") -> httpx.Response:
    return browser.get(leave(browser, path), headers={"Sec-Fetch-Site": "cross-site"})


def refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert (answer.status_code, COOKIE in answer.cookies) == (status, False), answer.text
    for word in words:
        assert word in answer.text, answer.text


def test_a_member_signs_in_acts_and_signs_out(world: World, provider: IdentityProvider, browser: httpx.Client) -> None:
    email = invited(world, Role.MEMBER)
    provider.person = person(email.upper())
    assert "Sign in with single sign-on" in browser.get("/ui/login").text
    answer = sign_in(browser)
    assert answer.status_code == 200
    assert "SameSite=strict" in str(answer.headers)
    assert 'content="0; url=/ui"' in answer.text
    assert f"{email}, member of team-" in browser.get("/ui").text
    with world.database.transaction() as session:
        query = select(ApiKey, TeamRow).join(TeamRow).join(User, User.id == ApiKey.user_id).where(User.name == email)
        key, team = session.execute(query).one()
        assert (key.scope.value, key.expires_at is not None) == ("submit", True)
        entry = session.scalars(select(AuditEntry).where(AuditEntry.team_id == team.id)).one()
        assert (entry.principal, entry.route, entry.status) == (email, "/ui/sso/callback", 200)
        assert set(entry.changes or {}) >= {"user.identity", "key.scope"}
    secret = browser.cookies[COOKIE]
    assert browser.post("/ui/logout").status_code == 303
    assert world.http(secret).get("/v1/me").status_code == 401


def test_roles_and_teams_are_those_of_the_service(
    world: World, provider: IdentityProvider, browser: httpx.Client
) -> None:
    email = invited(world, Role.VIEWER, Role.ADMIN)
    provider.person = person(email)
    assert sign_in(browser).status_code == 200
    shown = browser.get("/ui/team").text
    assert "viewer of team-" in shown
    other = shown.partition("/ui/sso?team=")[2].partition('"')[0]
    assert other.endswith("-1")
    assert sign_in(browser, f"/ui/sso?team={other}").status_code == 200
    assert "admin of team-" in browser.get("/ui").text
    refused(sign_in(browser, "/ui/sso?team=elsewhere"), 403, "no member of a team")


def test_nobody_runs_the_service_by_signing_in(world: World, provider: IdentityProvider, browser: httpx.Client) -> None:
    provider.person = person(invited(world, Role.ADMIN, cluster_admin=True)) | {"roles": ["admin"], "groups": ["admin"]}
    assert sign_in(browser).status_code == 200
    assert "admin of team-" not in browser.get("/ui").text
    assert browser.get("/ui/operations").status_code == 403


def test_unknown_disabled_teamless_and_unverified_get_one_answer(
    world: World, provider: IdentityProvider, browser: httpx.Client
) -> None:
    teamless, disabled = invited(world), invited(world, Role.MEMBER)
    with world.database.transaction() as session:
        user = session.scalars(select(User).where(User.name == disabled)).one()
        change_person(session, user, cluster_admin=None, disabled=True)
    answers = set()
    for email in ("nobody@example.org", teamless, disabled):
        provider.person = person(email)
        answer = sign_in(browser)
        refused(answer, 403, email, "no member of a team")
        answers.add(answer.text.replace(email, "EMAIL"))
    assert len(answers) == 1
    for verified in (False, "true", None):
        provider.person = person(invited(world, Role.MEMBER), verified)
        refused(sign_in(browser), 403, "no verified e-mail address")


def test_an_address_that_was_given_to_somebody_else_opens_nothing(
    world: World, provider: IdentityProvider, browser: httpx.Client
) -> None:
    email = invited(world, Role.MEMBER)
    provider.person = person(email, subject="the first")
    assert sign_in(browser).status_code == 200
    browser.cookies.clear()
    provider.person = person(email, subject="the second")
    refused(sign_in(browser), 403, "no member of a team")
    provider.person = person("ann.new@example.org", subject="the first")
    assert sign_in(browser).status_code == 200
    assert email in browser.get("/ui").text
    with world.database.transaction() as session:
        user = session.scalars(select(User).where(User.name == email)).one()
        for disabled in (True, False):
            change_person(session, user, cluster_admin=None, disabled=disabled)
    browser.cookies.clear()
    provider.person = person(email, subject="the second")
    assert sign_in(browser).status_code == 200


@pytest.mark.parametrize(
    ("lies", "word"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": ["another-client", "third"]}, "aud"),
        ({"iss": "https://elsewhere.example.org"}, "iss"),
        ({"exp": 1_700_000_000}, "expired"),
        ({"exp": None}, "exp"),
        ({"sub": ""}, "sub"),
        ({"sub": 7}, "sub"),
        ({"at_hash": "another"}, "at_hash"),
    ],
    ids=str,
)
def test_a_token_for_another_occasion_opens_nothing(
    world: World, provider: IdentityProvider, browser: httpx.Client, lies: dict[str, Any], word: str
) -> None:
    provider.person = person(invited(world, Role.MEMBER))
    provider.lies = lies
    refused(sign_in(browser), 401, "ID token is not valid", word)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_a_token_that_anybody_could_sign_opens_nothing(
    world: World, provider: IdentityProvider, browser: httpx.Client, algorithm: str
) -> None:
    provider.person = person(invited(world, Role.MEMBER))
    provider.algorithm = algorithm
    refused(sign_in(browser), 401, "ID token is not valid")


def test_keys_of_the_provider_may_change_and_others_sign_nothing(
    world: World, provider: IdentityProvider, browser: httpx.Client
) -> None:
    provider.person = person(invited(world, Role.MEMBER))
    assert sign_in(browser).status_code == 200
    provider.key = RSAKey.generate_key(2048, {"kid": "two"})
    assert sign_in(browser).status_code == 200
    browser.cookies.clear()
    back = leave(browser)
    published, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": "two"})
    assert published.kid == provider.key.kid
    refused(browser.get(back), 401, "ID token is not valid")


def test_only_the_browser_that_began_comes_back(
    world: World, provider: IdentityProvider, browser: httpx.Client
) -> None:
    provider.person = person(invited(world, Role.MEMBER))
    back = leave(browser)
    query = {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}
    for changes in ({"state": "another"}, {"state": "ü"}, {"state": ""}):
        refused(browser.get(f"/ui/sso/callback?{urlencode(query | changes)}"), 401, "did not begin in this browser")
    refused(browser.get(f"/ui/sso/callback?{urlencode(query | {'iss': 'https://elsewhere'})}"), 401, "another issuer")
    refused(browser.get(f"/ui/sso/callback?{urlencode({'error': 'access_denied', 'state': query['state']})}"), 401)
    with httpx.Client(base_url=world.url) as another:
        refused(another.get(back), 401, "did not begin in this browser")
        another.cookies.set("cupilot_sign_in", "{}", path="/ui/sso")
        refused(another.get(back), 401, "did not begin in this browser")
        leave(another)
        refused(another.get(back), 401, "did not begin in this browser")
    assert browser.get(back).status_code == 200
    refused(browser.get(back), 401, "did not begin in this browser")


def test_a_code_is_good_once(world: World, provider: IdentityProvider, browser: httpx.Client) -> None:
    provider.person = person(invited(world, Role.MEMBER))
    back = leave(browser)
    provider.waiting.clear()
    refused(browser.get(back), 401, "refused the sign-in code (invalid_grant)")


def test_another_site_begins_no_sign_in(provider: IdentityProvider, browser: httpx.Client) -> None:
    answer = browser.get("/ui/sso", headers={"Sec-Fetch-Site": "cross-site"})
    refused(answer, 403, "another site")
    assert "Location" not in answer.headers
    assert provider.waiting == {}


def test_a_provider_that_cannot_be_used_is_named(provider: IdentityProvider, browser: httpx.Client) -> None:
    provider.issuer = "https://elsewhere.example.org"
    refused(browser.get("/ui/sso"), 503, "name the issuer", "sign in with an API key meanwhile")


def test_without_a_provider_there_is_no_such_way(database_url: str) -> None:
    with live(create_app(Settings(database_url=SecretStr(database_url)))) as url, httpx.Client(base_url=url) as browser:
        assert "single sign-on" not in browser.get("/ui/login").text
        assert browser.get("/ui/sso").status_code == 404
        assert browser.get("/ui/sso/callback?state=x").status_code == 404
    with pytest.raises(ValidationError, match="go together"):
        Settings(oidc_issuer="https://id.example.org")
